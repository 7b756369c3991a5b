// Matrix products. `mm`, `addmm`, `bmm`, `baddbmm` use libtorch's derivatives. libtorch's `matmul` and
// `linear` fold leading dims into one, which does not preserve sharding along the second dim. Here they are
// separate operators with their own derivatives.
#include "tensor/dispatch/autograd.h"
#include "tensor/rules/rules.h"

#include <penstock/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/custom_function.h>

namespace penstock::tensor {
namespace {

void add_option(const OpCall& call, Options& options, const AxisPlacement& a, const AxisPlacement& b,
                const AxisPlacement& out, std::size_t first) {
  Option option = call.option();
  option.in[first] = a;
  option.in[first + 1] = b;
  option.out[0] = out;
  if (first == 1) {  // the added tensor, which broadcasts
    const std::int64_t missing = call.dims(1) - call.dims(0);
    const std::int64_t dim = out.is_shard() ? out.dim() - missing : 0;
    if (out.is_partial()) option.in[0] = out;
    if (out.is_shard() && dim >= 0 && call.sizes(0)[static_cast<std::size_t>(dim)] != 1)
      option.in[0] = Shard(dim);
  }
  options.push_back(option);
}

[[noreturn]] void refuse_sizes(const OpCall& call) {
  const bool linear = call.op.schema().name() == "aten::linear";
  throw ShapeError("matrices of these sizes cannot be multiplied: " + to_string(call),
                   {.op = call.op.schema().name()},
                   linear ? "the last dims of input and weight must have the same size"
                          : "the first must have as many columns as the second has rows, and their "
                            "batch dims must match");
}

//! Checks global sizes: shards may match on some ranks even if the matrices do not.
void check_sizes(const OpCall& call, std::size_t first) {
  const auto a = call.sizes(first), b = call.sizes(first + 1);
  if (a.size() < 2 || b.size() < 2 || a.back() != b[b.size() - 2]) refuse_sizes(call);
  if (a.size() == b.size() && a.slice(0, a.size() - 2) != b.slice(0, b.size() - 2)) refuse_sizes(call);
  if (first == 0) return;
  // The added tensor broadcasts to [.., m, n].
  Sizes out(a.begin(), a.end());
  out.back() = b.back();
  const auto summand = call.sizes(0);
  if (summand.size() > out.size()) refuse_sizes(call);
  for (std::size_t d = 0; d < summand.size(); ++d) {
    if (summand[d] != 1 && summand[d] != out[out.size() - summand.size() + d]) refuse_sizes(call);
  }
}

//! Options for a [.., m, k] and b [.., k, n] with the same batch dims, or b without batch dims.
void product_options(const OpCall& call, int axis, Options& options, std::size_t first) {
  check_sizes(call, first);
  const std::int64_t da = call.dims(first), db = call.dims(first + 1);
  const std::int64_t dims = std::max(da, db);
  if (da == db) {
    for (std::int64_t d = 0; d + 2 < da; ++d) {
      const auto at = static_cast<std::size_t>(d);
      if (call.sizes(first)[at] != call.sizes(first + 1)[at]) continue;
      add_option(call, options, Shard(d), Shard(d), Shard(d), first);
    }
  } else {
    for (std::int64_t d = 0; d + 2 < da; ++d)
      add_option(call, options, Shard(d), tensor::Replicate(), Shard(d), first);
  }
  add_option(call, options, Shard(da - 2), tensor::Replicate(), Shard(dims - 2), first);
  add_option(call, options, tensor::Replicate(), Shard(db - 1), Shard(dims - 1), first);
  add_option(call, options, Shard(da - 1), Shard(db - 2), Partial(), first);
  if (call.at(first, axis) == AxisPlacement(Partial()))
    add_option(call, options, Partial(), tensor::Replicate(), Partial(), first);
  if (call.at(first + 1, axis) == AxisPlacement(Partial()))
    add_option(call, options, tensor::Replicate(), Partial(), Partial(), first);
}

void product(const OpCall& call, int axis, Options& options) {
  product_options(call, axis, options, 0);
}
void product_and_sum(const OpCall& call, int axis, Options& options) {
  product_options(call, axis, options, 1);
}

//! The sum over leading dims of x^T y: [.., k] and [.., n] give [k, n].
at::Tensor fold_local(const at::Tensor& x, const at::Tensor& y) {
  return at::matmul(x.flatten(0, -2).t(), y.flatten(0, -2));
}

void fold_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t dims = call.dims(0);
  const auto add = [&](const AxisPlacement& x, const AxisPlacement& y, const AxisPlacement& out) {
    Option option = call.option();
    option.in = {x, y};
    option.out[0] = out;
    options.push_back(option);
  };
  for (std::int64_t d = 0; d + 1 < dims; ++d) add(Shard(d), Shard(d), Partial());
  add(Shard(dims - 1), tensor::Replicate(), Shard(0));
  add(tensor::Replicate(), Shard(dims - 1), Shard(1));
  if (call.at(0, axis) == AxisPlacement(Partial())) add(Partial(), tensor::Replicate(), Partial());
  if (call.at(1, axis) == AxisPlacement(Partial())) add(tensor::Replicate(), Partial(), Partial());
}

const OpRule kProduct{.options = product};
const OpRule kFold{.options = fold_options};

//! Plans a call of two tensors that is not a libtorch operator, and redistributes them. Uses the schema of
//! `matmul`.
struct Planned {
  at::Tensor a, b;
  Placements out;
  MeshPtr mesh;

  Planned(const at::Tensor& x, const at::Tensor& y, const OpRule& rule) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::matmul", "");
    Stack stack{x, y};
    OpCall call(op, rule, &stack);
    const OpPlan plan = make_plan(call);
    mesh = call.mesh;
    out = plan.out[0];
    const auto moved = [&](std::size_t i) {
      const TensorArg& arg = call.tensors[i];
      const at::Tensor t =
          arg.impl ? arg.tensor
                   : local_to_distributed(arg.tensor, mesh, Placements(out.size()), arg.tensor.sizes());
      return redistributed(t, plan.in[i], true);
    };
    a = moved(0);
    b = moved(1);
  }
};

at::Tensor dist_fold(const at::Tensor& x, const at::Tensor& y);
at::Tensor dist_product(const at::Tensor& a, const at::Tensor& b);

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

//! Gradients of products need the conjugate of the other factor.
at::Tensor conjugate(const at::Tensor& x) {
  return x.is_complex() ? x.conj() : x;
}

//! a @ b, where b is a matrix or has the batch dims of a. `out` and `mesh` come from the plan.
struct Multiply : torch::autograd::Function<Multiply> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b,
                            const Placements& out, const MeshPtr& mesh) {
    if (ctx) ctx->save_for_backward({a, b});
    const at::Tensor local = at::matmul(impl_of(a)->local(), impl_of(b)->local());
    Sizes sizes(a.sizes().begin(), a.sizes().end());
    sizes.back() = b.size(-1);
    return wrap(local, mesh, out, sizes);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &a = saved[0], &b = saved[1], &g = grads[0];
    at::Tensor da, db;
    if (ctx->needs_input_grad(0)) da = dist_product(g, conjugate(b).transpose(-2, -1));
    if (ctx->needs_input_grad(1))
      db = a.dim() == b.dim() ? dist_product(conjugate(a).transpose(-2, -1), g) : dist_fold(conjugate(a), g);
    return {da, db, {}, {}};
  }
};

struct Fold : torch::autograd::Function<Fold> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& y,
                            const Placements& out, const MeshPtr& mesh) {
    ctx->save_for_backward({x, y});
    return wrap(fold_local(impl_of(x)->local(), impl_of(y)->local()), mesh, out,
                Sizes{x.size(-1), y.size(-1)});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    at::Tensor dx, dy;
    if (ctx->needs_input_grad(0)) dx = dist_product(conjugate(saved[1]), grads[0].transpose(-2, -1));
    if (ctx->needs_input_grad(1)) dy = dist_product(conjugate(saved[0]), grads[0]);
    return {dx, dy, {}, {}};
  }
};

at::Tensor dist_product(const at::Tensor& a, const at::Tensor& b) {
  const Planned call(a, b, kProduct);
  return Multiply::apply(call.a, call.b, call.out, call.mesh);
}

at::Tensor dist_fold(const at::Tensor& x, const at::Tensor& y) {
  const Planned call(x, y, kFold);
  return Fold::apply(call.a, call.b, call.out, call.mesh);
}

//! Like torch.matmul: vectors become matrices, batch dims broadcast.
at::Tensor dist_matmul(const at::Tensor& a, const at::Tensor& b) {
  if (a.dim() == 1 && b.dim() == 1) return dist_matmul(a.unsqueeze(0), b.unsqueeze(1)).squeeze(1).squeeze(0);
  if (a.dim() == 1) return dist_matmul(a.unsqueeze(0), b).squeeze(-2);
  if (b.dim() == 1) return dist_matmul(a, b.unsqueeze(-1)).squeeze(-1);
  if (b.dim() == 2) return dist_product(a, b);
  std::vector<std::int64_t> batch;
  const auto size = [](const at::Tensor& t, std::int64_t from_end) {
    return from_end < t.dim() ? t.size(t.dim() - 1 - from_end) : 1;
  };
  for (std::int64_t d = std::max(a.dim(), b.dim()) - 1; d >= 2; --d)
    batch.push_back(size(a, d) == 1 ? size(b, d) : size(a, d));
  const auto expanded = [&](const at::Tensor& t) {
    std::vector<std::int64_t> sizes = batch;
    sizes.push_back(t.size(-2));
    sizes.push_back(t.size(-1));
    return t.sizes() == c10::IntArrayRef(sizes) ? t : t.expand(sizes);
  };
  return dist_product(expanded(a), expanded(b));
}

//! Reports the operator that the user called; the internal calls are all matmul.
void check_factors(const OpCall& call, const at::Tensor& a, const at::Tensor& b) {
  const std::string& name = call.op.schema().name();
  if (a.dim() == 0 || b.dim() == 0) refuse_sizes(call);
  if (name == "aten::dot" && (a.dim() != 1 || b.dim() != 1)) refuse_sizes(call);
  if (name == "aten::mv" && (a.dim() != 2 || b.dim() != 1)) refuse_sizes(call);
  if (a.size(-1) != b.size(b.dim() == 1 ? 0 : -2)) refuse_sizes(call);
  for (std::int64_t d = 3; d <= std::min(a.dim(), b.dim()); ++d) {
    if (a.size(-d) != b.size(-d) && a.size(-d) != 1 && b.size(-d) != 1) refuse_sizes(call);
  }
}

bool replace_matmul(const OpCall& call) {
  const at::Tensor a = call.arg(0).toTensor(), b = call.arg(1).toTensor();
  check_factors(call, a, b);
  finish(call, dist_matmul(a, b));
  return true;
}

bool replace_linear(const OpCall& call) {
  const at::Tensor x = call.arg(0).toTensor(), w = call.arg(1).toTensor();
  if (x.dim() == 0 || w.dim() == 0 || w.dim() > 2 || x.size(-1) != w.size(-1)) refuse_sizes(call);
  at::Tensor y = dist_matmul(x, w.t());
  if (!call.arg(2).isNone() && call.arg(2).toTensor().defined()) y = y + call.arg(2).toTensor();
  finish(call, y);
  return true;
}

//! Leaves the tensors as they are: the products make their own plans.
void as_they_are(const OpCall& call, int axis, Options& options) {
  options.clear();
  Option option = call.option();
  for (std::size_t i = 0; i < call.tensors.size(); ++i) option.in[i] = call.at(i, axis);
  options.push_back(option);
}

}  // namespace

void add_matmul_rules(RuleTable& table) {
  table["mm"] = table["bmm"] = {.options = product};
  table["addmm"] = table["baddbmm"] = {.options = product_and_sum};
  table["matmul"] = table["dot"] =
      table["mv"] = {.options = as_they_are, .replace = replace_matmul, .composite = true};
  table["linear"] = {.options = as_they_are, .replace = replace_linear, .composite = true};
}

}  // namespace penstock::tensor
