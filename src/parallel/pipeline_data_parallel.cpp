// Data parallelism of pipeline stages.
#include "base/text.h"
#include "parallel/shard/cast.h"
#include "parallel/shard/sharded_units.h"

#include <penstock/base/error.h>
#include <penstock/parallel/pipeline_data_parallel.h>
#include <penstock/value/tensors_in.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <utility>

namespace penstock::parallel {
namespace {

// A stage module whose parameters are the shards.
class ShardedStageModule final : public runtime::StageModule {
 public:
  ShardedStageModule(std::shared_ptr<runtime::StageModule> inner, std::shared_ptr<Sharded::Impl> units,
                     at::Device device)
      : inner_(std::move(inner)), units_(std::move(units)), device_(device) {
    if (units_->input_type()) inner_->allow_other_float_dtypes();
  }

  runtime::StageResult forward(const value::Args& args, const value::Kwargs& kwargs) override {
    const auto input = units_->input_type(), output = units_->output_type();
    if (!input && !output) return inner_->forward(args, kwargs);
    const auto cast = [](const auto& values, const std::optional<at::ScalarType>& to) {
      auto copy = values;
      value::replace_tensors(copy, [&](const at::Tensor& tensor) { return cast_floating(tensor, to); });
      return copy;
    };
    runtime::StageResult result = inner_->forward(cast(args, input), cast(kwargs, input));
    return {cast(result.output, output), cast(result.skips, output)};
  }
  std::vector<value::NamedTensor> parameters() const override {
    std::vector<value::NamedTensor> all;
    for (const ShardedParameter& item : units_->shards()) all.push_back({item.name, item.shard});
    return all;
  }
  std::vector<value::NamedTensor> buffers() const override { return inner_->buffers(); }
  void to(at::Device device) override {
    if (device == device_) return;
    throw UsageError(
        "the stage's parameters are sharded on " + device_.str() + " and cannot move to " + device.str(), {},
        "move the module before sharding it");
  }
  void train(bool on) override { inner_->train(on); }
  bool is_training() const override { return inner_->is_training(); }
  std::function<void()> enter_eval() override { return inner_->enter_eval(); }
  std::optional<std::set<std::string>> keywords() const override { return inner_->keywords(); }
  bool accumulates_repeatedly() const override { return inner_->accumulates_repeatedly(); }
  //! Resharded parameters are empty, but stay on their meshes.
  std::vector<tensor::DeviceMesh> meshes() const override { return inner_->meshes(); }

 private:
  std::shared_ptr<runtime::StageModule> inner_;
  std::shared_ptr<Sharded::Impl> units_;
  at::Device device_;
};

}  // namespace

ReplicatedStages::ReplicatedStages(const std::vector<runtime::PipelineStage>& stages,
                                   const comm::Group& group, const ReplicateOptions& options) {
  for (const runtime::PipelineStage& stage : stages)
    replicas_.emplace(stage.index(), replicate(stage.module(), group, options));
  for (auto& [index, replica] : replicas_) replica.set_sync(false);  // reductions are started manually
}

void ReplicatedStages::before_backward(StageId stage, runtime::GradientSync sync) {
  if (sync == runtime::GradientSync::Reduce) replicas_.at(stage).begin_reduction();
}

void ReplicatedStages::reduce_grad(StageId stage) {
  replicas_.at(stage).reduce();
}

void ReplicatedStages::recover(const comm::Group& group) {
  for (auto& [index, replica] : replicas_) replica.recover(group);
}

std::shared_ptr<runtime::StageModule> ShardedStages::add(StageId stage,
                                                         std::shared_ptr<runtime::StageModule> module) {
  const std::vector<value::NamedTensor> parameters = module->parameters();
  const at::Device device = parameters.empty() ? at::Device(at::kCPU) : parameters.front().tensor.device();
  Sharded sharded = shard_manually(*module, group_, options_);
  for (const ShardedParameter& item : sharded.shards()) {
    std::vector<comm::Group> groups = penstock::parallel::sharding_groups_of(item);
    if (!groups.empty()) sharding_groups_[item.shard.unsafeGetTensorImpl()] = std::move(groups);
  }
  auto shown = std::make_shared<ShardedStageModule>(std::move(module), Access::impl(sharded), device);
  if (!stages_.emplace(stage, std::move(sharded)).second)
    throw UsageError(str_cat("stage ", stage.value, " is already sharded"));
  return shown;
}

void ShardedStages::unshard(StageId stage) {
  Access::impl(stages_.at(stage))->start_unshard();
}
void ShardedStages::before_compute(StageId stage) {
  stages_.at(stage).unshard();
}
void ShardedStages::reshard(StageId stage) {
  Access::impl(stages_.at(stage))->reshard();
}
void ShardedStages::before_backward(StageId stage, runtime::GradientSync sync) {
  if (sync == runtime::GradientSync::Reduce) Access::impl(stages_.at(stage))->begin_last();
}
void ShardedStages::reduce_grad(StageId stage) {
  stages_.at(stage).reduce();
}

double ShardedStages::combine_norm(double part, comm::ReduceOp op) {
  if (stages_.empty()) return part;
  return Access::impl(stages_.begin()->second)->combine_norm(part, op);
}

std::vector<comm::Group> ShardedStages::sharding_groups_of(const at::Tensor& parameter) const {
  const auto found = sharding_groups_.find(parameter.unsafeGetTensorImpl());
  return found == sharding_groups_.end() ? std::vector<comm::Group>() : found->second;
}

std::vector<at::Tensor> ShardedStages::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& [index, sharded] : stages_) {
    for (const at::Tensor& shard : sharded.parameters()) all.push_back(shard);
  }
  return all;
}

void ShardedStages::recover(const comm::Group& group) {
  group_ = group;
  for (auto& [index, sharded] : stages_) sharded.recover(group);
}

}  // namespace penstock::parallel
