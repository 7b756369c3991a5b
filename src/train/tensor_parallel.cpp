// Cut parameters behind the trainer's interfaces.
#include "train/tensor_parallel.h"

#include <penstock/parallel/tensor_parallel.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>

namespace penstock::train {
namespace {

// Megatron's layout: two all-reduces a block and direction.
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
  }
  return plan;
}

class ReplicatedParts : public DataParallel {
 public:
  ReplicatedParts(std::vector<std::pair<StageId, std::shared_ptr<StageModule>>> stages, Group replicas)
      : stages_(std::move(stages)), replicas_(std::move(replicas)) {}

  void unshard(StageId) override {}
  void reshard(StageId) override {}
  void before_backward(StageId, bool) override {}
  void reduce_grad(StageId stage) override {
    const at::NoGradGuard no_grad;
    for (const auto& [index, module] : stages_) {
      if (index != stage) continue;
      for (const NamedTensor& item : module->parameters()) {
        if (!item.tensor.grad().defined()) continue;
        const at::Tensor grad = local_part(item.tensor.grad());
        const at::Tensor sum = grad.contiguous();
        replicas_.all_reduce(sum);
        sum.div_(replicas_.size());
        if (!sum.is_same(grad)) grad.copy_(sum);
      }
    }
  }

 private:
  std::vector<std::pair<StageId, std::shared_ptr<StageModule>>> stages_;
  Group replicas_;
};

}  // namespace

std::shared_ptr<StageModule> tensor_parallel_stage(const std::shared_ptr<torch::nn::Module>& owner,
                                                   const StageFunction& forward, const Group& tensors) {
  const ParallelPlan plan = plan_for(*owner);
  if (!plan.empty()) parallelize_module(*owner, DeviceMesh(tensors, {tensors.size()}, {"tp"}), plan);
  return make_stage_module(owner, [forward](const Args& args, const Kwargs& kwargs) {
    StageResult result = forward(args, kwargs);
    if (result.output.isTensor() && is_dtensor(result.output.toTensor()))
      result.output = full_tensor(result.output.toTensor());
    return result;
  });
}

at::Tensor local_part(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? local_of(tensor) : tensor;
}

at::Tensor whole_of(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? full_tensor(tensor).detach() : tensor;
}

Part part_of(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return Whole{};
  const auto& placement = placements_of(tensor).front();
  if (!placement.is_shard()) return Whole{};
  const DeviceMesh mesh = mesh_of(tensor);
  Box box{std::vector<std::int64_t>(tensor.sizes().size(), 0), tensor.sizes().vec()};
  const auto dim = static_cast<std::size_t>(placement.dim());
  const std::int64_t each = (tensor.size(placement.dim()) + mesh.size() - 1) / mesh.size();
  box.offsets[dim] = std::min(each * mesh.coordinate(0), tensor.size(placement.dim()));
  box.lengths[dim] = local_of(tensor).size(placement.dim());
  return box;
}

std::shared_ptr<DataParallel> replicate_parts(
    std::vector<std::pair<StageId, std::shared_ptr<StageModule>>> stages, const Group& replicas) {
  return std::make_shared<ReplicatedParts>(std::move(stages), replicas);
}

}  // namespace penstock::train
