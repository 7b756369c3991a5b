// Data parallelism of pipeline stages: what the executor asks for (runtime/data_parallel.h), replicated or
// sharded. Gradients are reduced once a step, after the last weight gradient of the stage, in every schedule.
#pragma once

#include <penstock/parallel/replicate.h>
#include <penstock/parallel/sharded.h>
#include <penstock/runtime/data_parallel.h>
#include <penstock/runtime/stage.h>

#include <map>
#include <memory>
#include <vector>

namespace penstock {

//! Stages that every rank of `group` (the ranks with the same stages in other pipelines) has whole. Goes into
//! PipelineOptions::data_parallel; PipelineOptions::replica should be the rank in the group.
class ReplicatedStages final : public DataParallel {
 public:
  ReplicatedStages(const std::vector<PipelineStage>& stages, const Group& group,
                   const ReplicateOptions& options = {});

  void unshard(StageId) override {}
  void reshard(StageId) override {}
  void before_backward(StageId stage, bool last) override;
  void reduce_grad(StageId stage) override;

  const Replica& replica(StageId stage) const { return replicas_.at(stage); }
  //! After a failed step and a rebuilt world.
  void recover(const Group& group);

 private:
  std::map<StageId, Replica> replicas_;
};

//! Stages of which each rank of the group has a part. The modules are given first, and what comes back makes
//! the stages:
//!   auto sharded = std::make_shared<ShardedStages>(group);
//!   PipelineStage stage(sharded->add(0, make_stage_module(module)), 0, …);
//! A stage's parameters are then the shards: for optimizers, clipping, and parameters that stages share
//! (which must be named in ShardOptions::alone).
class ShardedStages final : public DataParallel {
 public:
  explicit ShardedStages(Group group, ShardOptions options = {})
      : group_(std::move(group)), options_(std::move(options)) {}

  //! Shards the module, which must be on its device. All ranks of the group must add the same stages in the
  //! same order.
  std::shared_ptr<StageModule> add(int stage_index, std::shared_ptr<StageModule> module);
  template <class Module>
  requires(!std::is_convertible_v<Module, std::shared_ptr<StageModule>>) std::shared_ptr<StageModule> add(
      int stage_index, const Module& module) {
    return add(stage_index, make_stage_module(module));
  }

  void unshard(StageId stage) override;
  void reshard(StageId stage) override;
  void before_compute(StageId stage) override;
  void before_backward(StageId stage, bool last) override;
  void reduce_grad(StageId stage) override;
  double combine_norm(double part, bool largest) override;
  std::vector<Group> spread_of(const at::Tensor& parameter) const override;

  const Sharded& sharded(StageId stage) const { return stages_.at(stage); }
  //! What to give to an optimizer: the shards of all stages.
  std::vector<at::Tensor> parameters() const;
  //! After a failed step and a rebuilt world.
  void recover(const Group& group);

 private:
  Group group_;
  ShardOptions options_;
  std::map<StageId, Sharded> stages_;
  std::map<const c10::TensorImpl*, std::vector<Group>> spread_;  //!< of shards of distributed parameters
};

}  // namespace penstock
