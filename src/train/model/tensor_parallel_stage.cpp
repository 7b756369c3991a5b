// Tensor parallelism in the trainer.
#include "train/model/tensor_parallel_stage.h"

#include "base/text.h"
#include "parallel/tensor/module_paths.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_module.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/tensor/dtensor.h>
#include <penstock/train/lora.h>

#include <torch/nn/module.h>

#include <algorithm>

namespace penstock::train {
namespace {

bool is_shared(const std::string& name, const std::vector<runtime::SharedParameter>& shared) {
  return std::any_of(shared.begin(), shared.end(), [&](const runtime::SharedParameter& one) {
    return std::any_of(one.begin(), one.end(),
                       [&](const runtime::ParameterLocation& location) { return location.name == name; });
  });
}

[[noreturn]] void refuse_shared(const std::string& name) {
  throw UsageError("parameter " + quote(name) + " is held by several stages and cannot be sharded", {},
                   "leave its module out of the tensor-parallel plan, or use 1 pipeline rank");
}

}  // namespace

// Megatron's layout: two all-reduces per block in the forward and in the backward pass. The token embedding
// and the head, tied or not, are sharded by vocabulary, so the logits are sharded by classes.
parallel::ParallelPlan gpt_tensor_plan(const torch::nn::Module& module) {
  const std::vector<std::pair<std::string, parallel::ParallelStyle>> styles = {
      {"attention.query", parallel::ColwiseParallel()}, {"attention.key", parallel::ColwiseParallel()},
      {"attention.value", parallel::ColwiseParallel()}, {"attention.out", parallel::RowwiseParallel()},
      {"mlp.gate", parallel::ColwiseParallel()},        {"mlp.up", parallel::ColwiseParallel()},
      {"mlp.down", parallel::RowwiseParallel()}};
  const auto modules = module.named_modules("", false);
  parallel::ParallelPlan plan;
  // B of an adapter is sharded like the weight of a layer by columns, A like that of a layer by rows.
  const auto add = [&](const std::string& path, const parallel::ParallelStyle& style) {
    plan.emplace_back(path, style);
    const bool by_columns = std::holds_alternative<parallel::ColwiseParallel>(style);
    for (const bool embedding : {false, true}) {
      const AdaptedLayer layer{.module = path, .weight = {}, .embedding = embedding};
      const std::string adapter = by_columns ? layer.b_module() : layer.a_module();
      if (modules.contains(adapter)) plan.emplace_back(adapter, style);
    }
  };
  for (const auto& item : modules) {
    for (const auto& [name, style] : styles)
      if (item.key().starts_with("blocks.") && item.key().ends_with("." + name)) add(item.key(), style);
    if (item.key() == "token") add("token", parallel::RowwiseParallel());
    if (item.key() == "head") add("head", parallel::ColwiseParallel());
  }
  return plan;
}

std::shared_ptr<runtime::StageModule> tensor_parallel_stage(const std::shared_ptr<torch::nn::Module>& owner,
                                                            const runtime::StageFunction& forward,
                                                            const comm::Group& group, StageOutput output) {
  const parallel::ParallelPlan plan = gpt_tensor_plan(*owner);
  if (!plan.empty())
    parallel::parallelize_module(*owner, tensor::DeviceMesh(group, {group.size()}, {"tp"}), plan);
  if (output == StageOutput::Sharded) return runtime::make_stage_module(owner, forward);
  return runtime::make_stage_module(owner, [forward](const value::Args& args, const value::Kwargs& kwargs) {
    runtime::StageResult result = forward(args, kwargs);
    if (result.output.isTensor() && tensor::is_dtensor(result.output.toTensor()))
      result.output = tensor::full_tensor(result.output.toTensor());
    return result;
  });
}

void shard_graph_stage(graph::GraphModule& module, const parallel::ParallelPlan& plan,
                       const std::vector<runtime::SharedParameter>& shared, const comm::Group& group) {
  parallel::ParallelPlan all = plan;
  all.emplace_back("", parallel::PrepareModuleOutput{tensor::Replicate(), true});
  parallelize_module(module, tensor::DeviceMesh(group, {group.size()}, {"tp"}), all,
                     parallel::UnknownPath::Ignore);
  for (const auto& [name, tensor] : module.named_parameters())
    if (tensor::is_dtensor(tensor) && is_shared(name, shared)) refuse_shared(name);
}

void check_not_shared(const graph::Graph& graph, const parallel::ParallelPlan& plan,
                      const std::vector<runtime::SharedParameter>& shared) {
  for (const graph::Slot& slot : graph.slots) {
    if (slot.kind != graph::Slot::Kind::Parameter || !is_shared(slot.names[0], shared)) continue;
    for (const std::string& name : slot.names) {
      const std::string module = name.substr(0, name.rfind('.'));
      for (const auto& [pattern, style] : plan)
        if (parallel::path_fits(pattern, module)) refuse_shared(name);
    }
  }
}

at::Tensor local_shard(const at::Tensor& tensor) {
  return tensor::is_dtensor(tensor) ? tensor::local_of(tensor) : tensor;
}

at::Tensor gathered(const at::Tensor& tensor) {
  return tensor::is_dtensor(tensor) ? tensor::full_tensor(tensor).detach() : tensor;
}

}  // namespace penstock::train
