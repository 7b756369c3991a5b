// Reductions and operators along one dim. Sums of shards are partial sums, maxima are partial maxima. A mean
// divides the local sums by the global count, so that uneven shards are weighted correctly.
#include "tensor/layout/redistribute.h"
#include "tensor/rules/rules.h"

#include <ATen/ops/div.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace penstock::tensor {
namespace {

struct Reduced {
  c10::SmallVector<bool, 6> dims;
  bool keep = false;
  bool has(std::int64_t d) const { return dims[static_cast<std::size_t>(d)]; }
};

//! The reduced dims: argument `dims_at` (none, a number or a list; absent: all). `keepdim` is found by name.
Reduced reduced_dims(const OpCall& call, int dims_at) {
  Reduced result;
  const std::int64_t dims = call.dims(0);
  result.dims.resize(static_cast<std::size_t>(dims), true);
  const auto& arguments = call.op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "keepdim") result.keep = call.arg(i).toBool();
  }
  if (dims_at < 0) return result;
  const c10::IValue& given = call.arg(static_cast<std::size_t>(dims_at));
  std::vector<std::int64_t> list;
  if (given.isInt()) list = {given.toInt()};
  if (given.isIntList()) list = given.toIntVector();
  if (list.empty()) return result;
  std::fill(result.dims.begin(), result.dims.end(), false);
  for (const std::int64_t d : list) {
    const std::int64_t dim = c10::maybe_wrap_dim(d, dims);  // throws as for a dense tensor
    if (dims == 0) continue;
    const bool reduced = result.dims[static_cast<std::size_t>(dim)];
    TORCH_CHECK(!reduced, "dim ", dim, " is given twice to ", call.op.schema().name());
    result.dims[static_cast<std::size_t>(dim)] = true;
  }
  return result;
}

int dims_argument(const OpCall& call) {
  const auto& arguments = call.op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "dim" || arguments[i].name() == "dims") return static_cast<int>(i);
  }
  return -1;
}

std::int64_t kept_dim(const Reduced& reduced, std::int64_t d) {
  if (reduced.keep) return d;
  std::int64_t to = d;
  for (std::int64_t before = 0; before < d; ++before) to -= reduced.has(before) ? 1 : 0;
  return to;
}

void over_shards(const OpCall& call, int axis, Options& options, bool linear, const AxisPlacement* across) {
  const Reduced reduced = reduced_dims(call, dims_argument(call));
  const AxisPlacement here = call.at(0, axis);
  if (across && here.is_shard() && reduced.has(here.dim())) {
    const std::int64_t size = call.sizes(0)[static_cast<std::size_t>(here.dim())];
    const std::int64_t shards = call.shards_if_sharded(0, here.dim(), axis);
    // The maximum of no elements is undefined, so shards must not be empty; a sum is 0.
    if (linear || size % shards == 0) {
      Option option = call.option();
      option.in[0] = here;
      for (AxisPlacement& placement : option.out) placement = *across;
      options.push_back(option);
      return;
    }
  }
  map_dims(call, axis, options, linear,
           [&](std::int64_t d) { return reduced.has(d) ? -1 : kept_dim(reduced, d); });
}

void summed(const OpCall& call, int axis, Options& options) {
  static const AxisPlacement sum = Partial();
  const AxisPlacement here = call.at(0, axis);
  if (here.is_partial() && here.reduce() != comm::ReduceOp::Sum && here.reduce() != comm::ReduceOp::Avg)
    return;
  if (here.is_partial()) {
    // sum(…, dtype) and mean(…, dtype) convert first.
    const at::ScalarType from = call.tensors[0].tensor.scalar_type();
    const c10::IValue& type = call.arg(call.count() - 1);
    const at::ScalarType to = !type.isNone()                   ? type.toScalarType()
                              : at::isIntegralType(from, true) ? at::kLong
                                                               : from;
    if (!converts_partial(from, to, here.reduce())) return;
  }
  over_shards(call, axis, options, true, &sum);
}
void greatest(const OpCall& call, int axis, Options& options) {
  static const AxisPlacement max = Partial(comm::ReduceOp::Max);
  over_shards(call, axis, options, false, &max);
}
void least(const OpCall& call, int axis, Options& options) {
  static const AxisPlacement min = Partial(comm::ReduceOp::Min);
  over_shards(call, axis, options, false, &min);
}
void along_others(const OpCall& call, int axis, Options& options) {
  over_shards(call, axis, options, false, nullptr);
}

void mean_of_shards(const OpCall& call, const OpPlan& /*plan*/) {
  const int at = dims_argument(call);
  const Reduced reduced = reduced_dims(call, at);
  std::int64_t count = 1;
  std::vector<std::int64_t> dims;
  for (std::int64_t d = 0; d < call.dims(0); ++d) {
    if (!reduced.has(d)) continue;
    dims.push_back(d);
    count *= call.sizes(0)[static_cast<std::size_t>(d)];
  }
  const c10::IValue& given = call.arg(call.count() - 1);
  const at::Tensor local = call.arg(0).toTensor();
  const at::ScalarType type = given.isNone() ? local.scalar_type() : given.toScalarType();
  // Integers have no mean; libtorch's own error says so.
  if (!at::isFloatingType(type) && !at::isComplexType(type)) at::mean(at::zeros({1}, local.options()), type);
  // The sum of many half-precision values may overflow even if the mean does not.
  const at::ScalarType wide = at::isReducedFloatingType(type) ? at::kFloat : type;
  finish(call, at::sum(local, dims, reduced.keep, wide).div(count).to(type));
}

//! Keeps all dims, but `dim` (found by name) must not be sharded: softmax, cumsum, sort, …
void unsharded_dim_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t dim = call.dim_arg(static_cast<std::size_t>(dims_argument(call)), call.dims(0));
  const AxisPlacement here = call.at(0, axis);
  const auto all = [&](std::int64_t d) {
    Option option = call.option();
    for (std::size_t i = 0; i < option.in.size(); ++i) {
      if (call.dims(i) == call.dims(0)) option.in[i] = Shard(d);
    }
    for (AxisPlacement& placement : option.out) placement = Shard(d);
    options.push_back(option);
  };
  for (std::int64_t d = 0; d < call.dims(0); ++d) {
    const bool used = here.is_shard(d) || (call.tensors.size() > 1 && call.at(1, axis).is_shard(d));
    const bool even = call.sizes(0)[static_cast<std::size_t>(d)] % call.shards_if_sharded(0, d, axis) == 0;
    if (d != dim && (used || (here.is_shard(dim) && even))) all(d);
  }
}

void flipped(const OpCall& call, int axis, Options& options) {
  const auto dims = call.arg(1).toIntVector();
  map_dims(call, axis, options, true, [&](std::int64_t d) {
    const auto is = [&](std::int64_t dim) { return c10::maybe_wrap_dim(dim, call.dims(0)) == d; };
    return std::any_of(dims.begin(), dims.end(), is) ? -1 : d;
  });
}

//! value_selecting_reduction_backward(grad, dim, indices, sizes, keepdim) as a scatter that preserves
//! sharding.
bool selected_backward(const OpCall& call) {
  at::Tensor grad = call.arg(0).toTensor(), indices = call.arg(2).toTensor();
  const auto sizes = call.arg(3).toIntVector();
  const std::int64_t dim = call.dim_arg(1, static_cast<std::int64_t>(sizes.size()));
  if (!call.arg(4).toBool() && !sizes.empty()) {
    grad = grad.unsqueeze(dim);
    indices = indices.unsqueeze(dim);
  }
  finish(call, grad.new_zeros(sizes).scatter(dim, indices, grad));
  return true;
}

// norm(self, p?, dim[], keepdim)
bool replace_norm(const OpCall& call) {
  const at::Tensor x = call.arg(0).toTensor();
  const at::Scalar p = call.arg(1).isNone() ? at::Scalar(2) : call.arg(1).toScalar();
  const bool dims = call.count() > 2;
  const std::vector<std::int64_t> list = dims ? call.arg(2).toIntVector() : std::vector<std::int64_t>();
  const bool keep = dims && call.arg(3).toBool();
  finish(call, at::linalg_vector_norm(
                   x, p, list.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(list), keep));
  return true;
}

void stay(const OpCall& call, int axis, Options& options) {
  options.clear();
  Option option = call.option();
  for (std::size_t i = 0; i < call.tensors.size(); ++i) option.in[i] = call.at(i, axis);
  options.push_back(option);
}

void unsharded_matrix_options(const OpCall& call, int axis, Options& options) {
  map_dims(call, axis, options, true, [&](std::int64_t d) { return d + 2 < call.dims(0) ? d : -1; });
}

// --- norms: local norms are combined immediately, the result is replicated

void norm_options(const OpCall& call, int axis, Options& options) {
  const Reduced reduced = reduced_dims(call, 2);
  const AxisPlacement here = call.at(0, axis);
  const double ord = call.arg(1).toScalar().toDouble();
  if (here.is_shard() && reduced.has(here.dim()) && std::isfinite(ord) && ord > 0) {
    Option option = call.option();
    option.in[0] = here;
    option.bytes = 4096;
    options.push_back(option);
    return;
  }
  if (here.is_shard() && !reduced.has(here.dim())) {
    map_dims(call, axis, options, false,
             [&](std::int64_t d) { return reduced.has(d) ? -1 : kept_dim(reduced, d); });
  }
}

void norm_of_shards(const OpCall& call, const OpPlan& plan) {
  const Reduced reduced = reduced_dims(call, 2);
  const double ord = call.arg(1).toScalar().toDouble();
  call.op.callBoxed(call.stack);
  at::Tensor norm = call.stack->back().toTensor();
  bool powered = false;
  for (std::size_t axis = 0; axis < plan.in[0].size(); ++axis) {
    if (!plan.in[0][axis].is_shard() || !reduced.has(plan.in[0][axis].dim())) continue;
    if (!powered) norm = norm.pow(ord);
    powered = true;
    reduce_over(norm, *call.mesh, static_cast<int>(axis), comm::ReduceOp::Sum);
  }
  call.stack->back() = powered ? norm.pow(1 / ord) : norm;
}

}  // namespace

void add_reduction_rules(RuleTable& table) {
  table["sum"] = table["sum.dim_IntList"] = {.options = summed};
  table["mean"] = table["mean.dim"] = {.options = summed, .execute = mean_of_shards};
  table["amax"] = table["max"] = {.options = greatest};
  table["amin"] = table["min"] = {.options = least};
  for (const char* name :
       {"max.dim", "min.dim", "argmax", "argmin", "prod.dim_int", "any.dim", "all.dim", "any", "all",
        "var.correction", "std.correction", "logsumexp", "var_mean.correction", "prod"}) {
    table[name] = {.options = along_others};
  }
  for (const char* name : {"_softmax", "_safe_softmax", "_softmax_backward_data", "cumsum", "cumprod", "sort",
                           "sort.stable", "topk", "_log_softmax_backward_data"}) {
    table[name] = {.options = unsharded_dim_options};
  }
  table["flip"] = {.options = flipped};
  table["value_selecting_reduction_backward"] = {
      .options = stay, .replace = selected_backward, .composite = true};
  table["norm.Scalar"] =
      table["norm.ScalarOpt_dim"] = {.options = stay, .replace = replace_norm, .composite = true};
  table["tril"] = table["triu"] = {.options = unsharded_matrix_options};
  table["linalg_vector_norm"] = {.options = norm_options, .execute = norm_of_shards};
  // These need all elements.
  for (const char* name : {"_local_scalar_dense", "equal", "nonzero", "masked_select"}) {
    table[name].options = table[name].options ? table[name].options : [](const OpCall&, int, Options&) {};
  }
}

}  // namespace penstock::tensor
