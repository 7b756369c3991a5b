// Chooses, per mesh axis, the cheapest option of an operator's rule. The cost of an option is the number of
// bytes sent to redistribute the arguments for it. Moving a parameter costs a thousand times as much, because
// its placements were chosen on purpose. An option that makes a replicated value partial pays for the
// reduction that it only defers.
#include "base/text.h"
#include "tensor/rules/rules.h"

#include <penstock/base/error.h>

#include <c10/core/WrapDimMinimal.h>

#include <limits>
#include <sstream>

namespace penstock::tensor {
namespace {

constexpr double kLatency = 4096;  // bytes that could be sent during the latency of one collective

double cost_of(const OpCall& call, std::size_t tensor, const AxisPlacement& want, int axis) {
  const AxisPlacement here = call.at(tensor, axis);
  if (here == want) return 0;
  const std::int64_t n = call.ranks(axis);
  if (n == 1) return 0;
  const at::Tensor& t = call.tensors[tensor].tensor;
  double bytes = static_cast<double>(t.numel()) * static_cast<double>(t.element_size());
  for (int other = 0; other < static_cast<int>(call.mesh->shape.size()); ++other) {
    if (other != axis && call.at(tensor, other).is_shard()) bytes /= static_cast<double>(call.ranks(other));
  }
  const double reduction = move_bytes(Partial(), tensor::Replicate(), bytes, n) + 1.01 * kLatency;
  double cost = 0;
  if (here.is_replicate()) {
    cost = want.is_partial() ? reduction : 1;
  } else {
    cost = move_bytes(here, want, bytes, n);
    if (cost < 0) cost = move_bytes(here, tensor::Replicate(), bytes, n) + reduction;
    cost += kLatency;
    const DTensorImpl* impl = call.tensors[tensor].impl;
    if (impl && impl->pinned) cost *= 1000;
  }
  return cost;
}

double cost_of(const OpCall& call, const Option& option, int axis) {
  double cost = option.bytes;
  for (std::size_t i = 0; i < call.tensors.size(); ++i) cost += cost_of(call, i, option.in[i], axis);
  return cost;
}

[[noreturn]] void refuse_in_place(const OpCall& call) {
  throw UsageError(
      "an in-place operator cannot keep the placements of the tensor that it writes: " + to_string(call),
      {.op = call.op.schema().name()}, "redistribute the tensor first, or use the out-of-place operator");
}

}  // namespace

OpCall::OpCall(const c10::OperatorHandle& handle, const OpRule& r, Stack* s) : op(handle), rule(r), stack(s) {
  args_ = op.schema().arguments().size();
  base_ = stack->size() - args_;
  const auto note = [&](std::size_t arg, int item, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    DTensorImpl* const impl = impl_of(tensor);
    tensors.push_back({arg, item, tensor, impl});
    if (!impl) return;
    if (!mesh) {
      mesh = impl->mesh_ptr();
    } else if (mesh != impl->mesh_ptr() && !(Access::mesh(mesh) == Access::mesh(impl->mesh_ptr()))) {
      throw UsageError("the arguments are on different meshes: " + to_string(Access::mesh(mesh)) + " and " +
                           to_string(Access::mesh(impl->mesh_ptr())),
                       {.op = op.schema().name()},
                       "move one to the mesh of the other with full_tensor and distribute_tensor");
    }
  };
  for (std::size_t i = 0; i < args_; ++i) {
    const c10::IValue& value = arg(i);
    if (value.isTensor()) {
      note(i, -1, value.toTensor());
    } else if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
      int item = 0;
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) note(i, item, element.toTensor());
        ++item;
      }
    }
  }
}

int OpCall::tensor_at(std::size_t arg) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].arg == arg) return static_cast<int>(i);
  }
  return -1;
}

std::int64_t OpCall::dim_arg(std::size_t i, std::int64_t dims) const {
  return c10::maybe_wrap_dim(arg(i).toInt(), dims);
}

std::int64_t OpCall::shards_if_sharded(std::size_t tensor, std::int64_t dim, int axis) const {
  std::int64_t shards = ranks(axis);
  for (int other = 0; other < static_cast<int>(mesh->shape.size()); ++other) {
    if (other == axis) continue;
    const bool planned = so_far && other < axis;
    const AxisPlacement there =
        planned ? so_far->in[tensor][static_cast<std::size_t>(other)] : at(tensor, other);
    if (there.is_shard(dim)) shards *= ranks(other);
  }
  return shards;
}

Option OpCall::option() const {
  Option result;
  result.in.resize(tensors.size());
  result.out.resize(results());
  return result;
}

std::string to_string(const OpCall& call) {
  const c10::FunctionSchema& schema = call.op.schema();
  std::ostringstream text;
  text << schema.name() << (schema.overload_name().empty() ? "" : "." + schema.overload_name()) << " of ";
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    text << (i == 0 ? "" : " and ") << call.sizes(i);
    if (call.tensors[i].impl) text << " " << to_string(call.tensors[i].impl->placements());
  }
  return text.str();
}

OpPlan make_plan(const OpCall& call) {
  const std::size_t axes = call.mesh->shape.size();
  OpPlan plan;
  plan.in.resize(call.tensors.size(), Placements(axes));
  plan.out.resize(call.results(), Placements(axes));
  Options options;
  call.so_far = &plan;
  for (int axis = 0; axis < static_cast<int>(axes); ++axis) {
    options.clear();
    options.push_back(call.option());
    if (call.rule.options) call.rule.options(call, axis, options);
    double best = std::numeric_limits<double>::infinity();
    const Option* chosen = nullptr;
    for (const Option& option : options) {
      // The written tensor keeps its placement.
      const AxisPlacement first = call.at(0, axis);
      if (call.rule.writes_first && !(option.in[0] == first && option.out[0] == first)) continue;
      const double cost = cost_of(call, option, axis);
      if (cost < best) {
        best = cost;
        chosen = &option;
      }
    }
    if (!chosen) refuse_in_place(call);
    const auto index = static_cast<std::size_t>(axis);
    for (std::size_t i = 0; i < chosen->in.size(); ++i) plan.in[i][index] = chosen->in[i];
    for (std::size_t i = 0; i < chosen->out.size(); ++i) plan.out[i][index] = chosen->out[i];
  }
  call.so_far = nullptr;
  return plan;
}

}  // namespace penstock::tensor
