// Pointwise operators, identified by libtorch's tag instead of a list of names. Shapes broadcast. Partial
// sums propagate through operators that are linear in them.
#include "tensor/rules/rules.h"

#include <penstock/base/error.h>

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string_view>

namespace penstock::tensor {

Sizes broadcast_sizes(const OpCall& call) {
  std::size_t dims = 0;
  for (std::size_t i = 0; i < call.tensors.size(); ++i) dims = std::max(dims, call.sizes(i).size());
  Sizes sizes(dims, 1);
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    const auto arg_sizes = call.sizes(i);
    for (std::size_t d = 0; d < arg_sizes.size(); ++d) {
      std::int64_t& size = sizes[dims - arg_sizes.size() + d];
      if (size != arg_sizes[d] && size != 1 && arg_sizes[d] != 1)
        throw ShapeError("the sizes do not broadcast: " + to_string(call), {.op = call.op.schema().name()});
      if (size == 1) size = arg_sizes[d];
    }
  }
  if (call.rule.writes_first && c10::IntArrayRef(sizes) != call.sizes(0)) {
    throw ShapeError("a tensor that is written cannot be broadcast: " + to_string(call),
                     {.op = call.op.schema().name()});
  }
  return sizes;
}

namespace {

void shard_options(const OpCall& call, int axis, Options& options) {
  const Sizes sizes = broadcast_sizes(call);
  const auto dims = static_cast<std::int64_t>(sizes.size());
  c10::SmallVector<std::int64_t, 4> done;
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    const AxisPlacement here = call.at(i, axis);
    if (!here.is_shard()) continue;
    const std::int64_t out = here.dim() + dims - call.dims(i);
    if (std::find(done.begin(), done.end(), out) != done.end()) continue;
    done.push_back(out);
    Option option = call.option();
    for (std::size_t k = 0; k < call.tensors.size(); ++k) {
      const std::int64_t dim = out - (dims - call.dims(k));
      if (dim < 0) continue;
      // A tensor that broadcasts along the dim must be replicated.
      const bool stretched =
          call.sizes(k)[static_cast<std::size_t>(dim)] == 1 && sizes[static_cast<std::size_t>(out)] != 1;
      if (!stretched) option.in[k] = Shard(dim);
    }
    for (AxisPlacement& placement : option.out) placement = Shard(out);
    options.push_back(option);
  }
}

bool adds_up(const AxisPlacement& placement) {
  return placement.is_partial() &&
         (placement.reduce() == comm::ReduceOp::Sum || placement.reduce() == comm::ReduceOp::Avg);
}

//! Whether the operator returns its input elements unchanged: then partial minima, maxima and products
//! propagate too.
bool keeps_elements(const OpCall& call) {
  const std::string& name = call.op.schema().name();
  return name == "aten::clone" || name == "aten::positive" || name == "aten::_to_copy";
}

void partial_options(const OpCall& call, int axis, Options& options) {
  using Linear = OpRule::Linear;
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    const AxisPlacement here = call.at(i, axis);
    if (!here.is_partial()) continue;
    if (!adds_up(here) && !keeps_elements(call)) continue;
    Option option = call.option();
    for (AxisPlacement& placement : option.out) placement = here;
    switch (call.rule.linear) {
      case Linear::No:
        return;
      case Linear::All:
        for (AxisPlacement& placement : option.in) placement = here;
        break;
      case Linear::First:
        if (i != 0) continue;
        option.in[0] = here;
        break;
      case Linear::Product:
        option.in[i] = here;
        break;
    }
    options.push_back(option);
    return;
  }
}

void pointwise(const OpCall& call, int axis, Options& options) {
  shard_options(call, axis, options);
  if (call.rule.linear != OpRule::Linear::No) partial_options(call, axis, options);
}

//! to(dtype): a partial sum stays partial if conversion and reduction commute.
void cast_options(const OpCall& call, int axis, Options& options) {
  shard_options(call, axis, options);
  const at::ScalarType from = call.tensors[0].tensor.scalar_type();
  const at::ScalarType to = call.arg(1).isNone() ? from : call.arg(1).toScalarType();
  const AxisPlacement here = call.at(0, axis);
  if (here.is_partial() && converts_partial(from, to, here.reduce())) partial_options(call, axis, options);
}

//! copy_(self, source): like a conversion of the source.
void copy_options(const OpCall& call, int axis, Options& options) {
  shard_options(call, axis, options);
  const at::ScalarType to = call.tensors[0].tensor.scalar_type();
  const bool legal = call.tensors.size() < 2 || !call.at(1, axis).is_partial() ||
                     converts_partial(call.tensors[1].tensor.scalar_type(), to, call.at(1, axis).reduce());
  if (legal) partial_options(call, axis, options);
}

//! where(condition, self, other).
void where_options(const OpCall& call, int axis, Options& options) {
  shard_options(call, axis, options);
  for (std::size_t i = 1; i < call.tensors.size(); ++i) {
    if (!call.at(i, axis).is_partial() || call.at(i, axis).reduce() != comm::ReduceOp::Sum) continue;
    Option option = call.option();
    for (std::size_t k = 1; k < call.tensors.size(); ++k) option.in[k] = Partial();
    option.out[0] = Partial();
    options.push_back(option);
    return;
  }
}

void identity_options(const OpCall& call, int axis, Options& options) {
  Option option = call.option();
  for (std::size_t i = 0; i < call.tensors.size(); ++i) option.in[i] = call.at(i, axis);
  for (AxisPlacement& placement : option.out) placement = call.at(0, axis);
  options.push_back(option);
}

//! empty_like and similar: sharded like the input, replicated if that is partial.
void like_options(const OpCall& call, int axis, Options& options) {
  Option option = call.option();
  option.in[0] = call.at(0, axis);
  if (option.in[0].is_shard()) option.out[0] = option.in[0];
  options.push_back(option);
}

//! New tensors of given sizes are replicated, because any value may be written. Exception: autograd uses
//! new_empty_strided to copy a gradient to another layout; the result then has the gradient's placements.
//! Whether autograd does so depends on the strides of the local shard, so ranks may differ and no
//! communication is allowed.
void new_options(const OpCall& call, int axis, Options& options) {
  Option option = call.option();
  option.in[0] = call.at(0, axis);
  const bool same = call.op.schema().name() == "aten::new_empty_strided" &&
                    c10::IntArrayRef(call.arg(1).toIntVector()) == call.sizes(0);
  if (same && (option.in[0].is_shard() || adds_up(option.in[0]))) option.out[0] = option.in[0];
  options.clear();
  options.push_back(option);
}

void local_new(const OpCall& call, const OpPlan& plan) {
  const Sizes sizes = local_sizes(call.arg(1).toIntVector(), plan.out[0], *call.mesh);
  call.arg(1) = std::vector<std::int64_t>(sizes.begin(), sizes.end());
  if (call.op.schema().name() != "aten::new_empty_strided") return;
  const Sizes strides = dense_strides(sizes, call.arg(2).toIntVector());
  call.arg(2) = std::vector<std::int64_t>(strides.begin(), strides.end());
}

OpRule::Linear linearity(std::string_view name) {
  if (!name.empty() && name.back() == '_') name.remove_suffix(1);
  for (const char* all : {"add", "sub", "rsub", "neg", "clone", "positive", "copy", "_to_copy"}) {
    if (name == all) return OpRule::Linear::All;
  }
  if (name == "mul") return OpRule::Linear::Product;
  if (name == "div" || (name.size() > 9 && name.ends_with("_backward"))) return OpRule::Linear::First;
  return OpRule::Linear::No;
}

//! Some in-place operators lack the pointwise tag of their out-of-place variant.
bool is_pointwise(const c10::OperatorHandle& op, const c10::OperatorName& name) {
  if (op.hasTag(at::Tag::pointwise)) return true;
  if (name.name.back() != '_') return false;
  const auto other = c10::Dispatcher::singleton().findSchema(
      {name.name.substr(0, name.name.size() - 1), name.overload_name});
  return other && other->hasTag(at::Tag::pointwise);
}

}  // namespace

bool converts_partial(at::ScalarType from, at::ScalarType to, comm::ReduceOp reduce) {
  if (from == to) return true;
  if (from == at::kBool || to == at::kBool) return false;
  using comm::ReduceOp;
  const auto integral = [](at::ScalarType type) { return at::isIntegralType(type, false); };
  if (integral(to) && !integral(from)) return false;            // rounds
  if (integral(from) && reduce == ReduceOp::Avg) return false;  // is rounded when it is reduced
  if (integral(from) && integral(to)) {
    // Integers wrap around. Sums and products commute with that; extrema only if no value wraps.
    if (reduce == ReduceOp::Sum || reduce == ReduceOp::Product) return true;
    const bool from_signed = at::isSignedType(from), to_signed = at::isSignedType(to);
    if (from_signed == to_signed) return c10::elementSize(to) >= c10::elementSize(from);
    return to_signed && c10::elementSize(to) > c10::elementSize(from);
  }
  if (at::isComplexType(from) && !at::isComplexType(to)) return reduce != ReduceOp::Product;
  // Contributions may be outside the range of half precision although the reduced value is not.
  return to != at::kHalf && to != at::kComplexHalf;
}

void add_pointwise_rules(RuleTable& table) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !is_pointwise(*op, name)) continue;
    const auto& arguments = op->schema().arguments();
    const bool out =
        std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& a) { return a.is_out(); });
    // Composite operators decompose into others that have rules.
    const bool composite = op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                           !op->hasKernelForDispatchKey(c10::DispatchKey::CPU);
    // `equal` has the tag too, but returns one value for all elements.
    const auto& results = op->schema().returns();
    const bool tensors = std::all_of(results.begin(), results.end(), [](const c10::Argument& a) {
      return a.type()->kind() == c10::TypeKind::TensorType || a.type()->kind() == c10::TypeKind::ListType;
    });
    if (out || composite || !tensors) continue;
    OpRule rule{.options = pointwise, .kind = OpRule::Kind::Pointwise};
    const std::string base = name.name.substr(6);
    rule.linear = linearity(base);
    // A scalar added to a partial sum would be added once per rank. libtorch converts it to a tensor, which
    // gets a placement.
    const bool number = name.overload_name == "Scalar";
    if (number && rule.linear == OpRule::Linear::All) continue;
    // Rounding is not linear.
    if (base.starts_with("div") && name.overload_name.ends_with("mode")) rule.linear = OpRule::Linear::No;
    table[base + (name.overload_name.empty() ? "" : "." + name.overload_name)] = rule;
  }
  const OpRule linear{.options = pointwise, .kind = OpRule::Kind::Pointwise, .linear = OpRule::Linear::All};
  for (const char* name : {"copy_", "_to_copy", "zero_"}) table[name] = linear;
  table["_to_copy"].options = cast_options;
  table["copy_"].options = copy_options;
  table["copy_"].loads = true;
  const OpRule plain{.options = pointwise, .kind = OpRule::Kind::Pointwise};
  for (const char* name : {"fill_.Scalar", "fill_.Tensor"}) table[name] = plain;
  for (const char* name : {"where.self"}) table[name].options = where_options;
  const OpRule identity{.options = identity_options, .kind = OpRule::Kind::Identity};
  for (const char* name : {"detach", "alias", "lift", "lift_fresh", "_fused_sdp_choice"})
    table[name] = identity;
  table["empty_like"] = {.options = like_options};
  for (const char* name : {"new_empty", "new_zeros", "new_empty_strided"})
    table[name] = {.options = new_options, .localize = local_new};
}

}  // namespace penstock::tensor
