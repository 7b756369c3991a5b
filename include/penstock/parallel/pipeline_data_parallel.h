// Data parallelism of pipeline stages, replicated or sharded: implementations of the executor's interface
// (runtime/data_parallel.h). With every schedule, gradients are reduced once per step, after the last weight
// gradient of the stage.
#pragma once

#include <penstock/parallel/replicate.h>
#include <penstock/parallel/sharded.h>
#include <penstock/runtime/data_parallel.h>
#include <penstock/runtime/stage.h>

#include <map>
#include <memory>
#include <vector>

namespace penstock::parallel {

//! Stages that are replicated on every rank of `group`: the ranks that run the same stages in other
//! pipelines. Pass it as PipelineOptions::data_parallel and set PipelineOptions::replica to the rank in the
//! group.
class ReplicatedStages final : public runtime::DataParallel {
 public:
  ReplicatedStages(const std::vector<runtime::PipelineStage>& stages, const comm::Group& group,
                   const ReplicateOptions& options = {});

  void unshard(StageId) override {}
  void reshard(StageId) override {}
  void before_backward(StageId stage, runtime::GradientSync sync) override;
  void reduce_grad(StageId stage) override;

  Replica& replica(StageId stage) { return replicas_.at(stage); }
  const Replica& replica(StageId stage) const { return replicas_.at(stage); }
  //! Continues with a new group after a failed step.
  void recover(const comm::Group& group);

 private:
  std::map<StageId, Replica> replicas_;
};

//! Stages that are sharded over the ranks of the group. Add the modules first and construct the stages from
//! the results:
//!   auto sharded = std::make_shared<ShardedStages>(group);
//!   PipelineStage stage(sharded->add(StageId(0), make_stage_module(module)), StageId(0), …);
//! The parameters of such a stage are the shards, for optimizers, clipping and tied parameters. Tied
//! parameters must be listed in StageShardOptions::separate.
class ShardedStages final : public runtime::DataParallel {
 public:
  explicit ShardedStages(comm::Group group, StageShardOptions options = {})
      : group_(std::move(group)), options_(std::move(options)) {}

  //! Shards the module, which must already be on its device. All ranks of the group must add the same stages
  //! in the same order.
  std::shared_ptr<runtime::StageModule> add(StageId stage, std::shared_ptr<runtime::StageModule> module);
  template <runtime::UnwrappedModule Module>
  std::shared_ptr<runtime::StageModule> add(StageId stage, const Module& module) {
    return add(stage, runtime::make_stage_module(module));
  }

  void unshard(StageId stage) override;
  void reshard(StageId stage) override;
  void before_compute(StageId stage) override;
  void before_backward(StageId stage, runtime::GradientSync sync) override;
  void reduce_grad(StageId stage) override;
  double combine_norm(double local, comm::ReduceOp op) override;
  std::vector<comm::Group> sharding_groups_of(const at::Tensor& parameter) const override;

  Sharded& sharded(StageId stage) { return stages_.at(stage); }
  const Sharded& sharded(StageId stage) const { return stages_.at(stage); }
  //! The parameters for an optimizer: the shards of all stages.
  std::vector<at::Tensor> parameters() const;
  //! Continues with a new group after a failed step.
  void recover(const comm::Group& group);

 private:
  comm::Group group_;
  StageShardOptions options_;
  std::map<StageId, Sharded> stages_;
  std::map<const c10::TensorImpl*, std::vector<comm::Group>>
      sharding_groups_;  //!< sharding groups of distributed parameters
};

}  // namespace penstock::parallel
