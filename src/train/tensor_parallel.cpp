// Cut parameters behind the trainer's interfaces.
#include "train/tensor_parallel.h"

#include "parallel/module_paths.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>
#include <penstock/graph/module.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/tensor/dtensor.h>

#include <torch/nn/module.h>

#include <algorithm>

namespace penstock::train {
namespace {

// Megatron's layout: two all-reduces a block and direction. The token table is cut by vocabulary, and so is
// the head, be it that table or one of its own: logits are born cut by classes.
ParallelPlan plan_for(const torch::nn::Module& module) {
  const std::vector<std::pair<std::string, ParallelStyle>> styles = {
      {"attention.query", ColwiseParallel()}, {"attention.key", ColwiseParallel()},
      {"attention.value", ColwiseParallel()}, {"attention.out", RowwiseParallel()},
      {"mlp.gate", ColwiseParallel()},        {"mlp.up", ColwiseParallel()},
      {"mlp.down", RowwiseParallel()}};
  ParallelPlan plan;
  for (const auto& item : module.named_modules("", false)) {
    for (const auto& [name, style] : styles)
      if (item.key().starts_with("blocks.") && item.key().ends_with("." + name))
        plan.emplace_back(item.key(), style);
    if (item.key() == "token") plan.emplace_back("token", RowwiseParallel());
    if (item.key() == "head") plan.emplace_back("head", ColwiseParallel());
  }
  return plan;
}

bool is_shared(const std::string& name, const std::vector<SharedParameter>& shared) {
  return std::any_of(shared.begin(), shared.end(), [&](const SharedParameter& one) {
    return std::any_of(one.begin(), one.end(),
                       [&](const ParameterPlace& place) { return place.name == name; });
  });
}

[[noreturn]] void refuse_shared(const std::string& name) {
  throw UsageError("parameter " + quote(name) + " is held by several stages and cannot be sharded", {},
                   "leave its module out of the tensor-parallel plan, or use 1 pipeline rank");
}

}  // namespace

std::shared_ptr<StageModule> tensor_parallel_stage(const std::shared_ptr<torch::nn::Module>& owner,
                                                   const StageFunction& forward, const Group& tensors,
                                                   StageOutput output) {
  const ParallelPlan plan = plan_for(*owner);
  if (!plan.empty()) parallelize_module(*owner, DeviceMesh(tensors, {tensors.size()}, {"tp"}), plan);
  if (output == StageOutput::AsItIs) return make_stage_module(owner, forward);
  return make_stage_module(owner, [forward](const Args& args, const Kwargs& kwargs) {
    StageResult result = forward(args, kwargs);
    if (result.output.isTensor() && is_dtensor(result.output.toTensor()))
      result.output = full_tensor(result.output.toTensor());
    return result;
  });
}

void cut_graph_stage(GraphModule& module, const ParallelPlan& plan,
                     const std::vector<SharedParameter>& shared, const Group& tensors) {
  ParallelPlan all = plan;
  all.emplace_back("", PrepareModuleOutput{Replicate(), true});
  parallelize_module(module, DeviceMesh(tensors, {tensors.size()}, {"tp"}), all, UnknownPath::PassOver);
  for (const auto& [name, tensor] : module.named_parameters())
    if (is_dtensor(tensor) && is_shared(name, shared)) refuse_shared(name);
}

void check_not_shared(const Graph& graph, const ParallelPlan& plan,
                      const std::vector<SharedParameter>& shared) {
  for (const Slot& slot : graph.slots) {
    if (slot.kind != Slot::Kind::Parameter || !is_shared(slot.names[0], shared)) continue;
    for (const std::string& name : slot.names) {
      const std::string module = name.substr(0, name.rfind('.'));
      for (const auto& [pattern, style] : plan)
        if (path_fits(pattern, module)) refuse_shared(name);
    }
  }
}

at::Tensor local_part(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? local_of(tensor) : tensor;
}

at::Tensor whole_of(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? full_tensor(tensor).detach() : tensor;
}

}  // namespace penstock::train
