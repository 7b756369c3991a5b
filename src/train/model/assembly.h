// The pipeline of a run: the stages of this rank, the schedule, and the optimizer of their parameters.
#pragma once

#include "train/diagnostics/instrumented_stage.h"
#include "train/loop/measure.h"
#include "train/loop/optimizer.h"

#include <penstock/parallel/pipeline_data_parallel.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/schedule/generate.h>
#include <penstock/tensor/mesh.h>
#include <penstock/train/model.h>
#include <penstock/train/trainer.h>

#include <memory>
#include <optional>

namespace penstock::train {

//! The progress of this rank, reported to its hook.
struct Progress {
  std::int64_t step = 0;  //!< from 1; 0 during setup
  StageModules stages{};  //!< of this rank
  RankHook* hook = nullptr;

  RankState state() const { return {step > 0 ? std::optional(step) : std::nullopt, stages}; }
  void enter(RunPhase phase) {
    if (hook) hook->on_phase(phase, state());
  }
};

struct Assembly {
  at::Device device = at::kCPU;  //!< of this rank
  std::shared_ptr<StageObserver> observer = std::make_shared<StageObserver>();
  std::map<StageId, std::shared_ptr<InstrumentedStage>> stages;  //!< the stages of this rank
  //! Null if the optimizer updates the parameters of the stages themselves.
  std::shared_ptr<parallel::ShardedStages> sharded;
  Sharding sharding = Sharding::None;
  ModelState state;  //!< additional state for checkpoints
  //! The buffers of this rank that a step changes, sorted by dtype. Empty if there is only one replica.
  std::vector<at::Tensor> replica_buffers;
  std::vector<std::string> messages;  //!< for the user: how the model is sharded
  std::unique_ptr<runtime::PipelineSchedule> pipeline;
  std::unique_ptr<Optimizer> optimizer;

  //! Returns the sizes of the stages of this rank, for the planner.
  std::map<StageId, StageBytes> bytes() const;
  //! The pipeline rank of the last stage, which computes the loss.
  int loss_rank() const;
};

//! The mesh of a run, with the axes `pp`, `dp` and `tp`. Throws UsageError if the world has a different size.
//! Collective.
tensor::DeviceMesh make_mesh(const comm::World& world, const ParallelOptions& options);

//! Whether the schedule is planned from measured costs.
bool is_auto(const ParallelOptions& options);
//! Returns the counts of a training schedule. Throws UsageError if the schedule does not support them.
schedule::ScheduleShape checked_shape(const ParallelOptions& options, schedule::ScheduleKind kind);
//! Generates a schedule for the counts in the options.
schedule::Schedule schedule_of(const ParallelOptions& options, schedule::ScheduleKind kind);
//! Returns the number of stages of the run. Throws UsageError like `checked_shape`.
int num_stages(const ParallelOptions& options);

//! Resolves the patterns of parameters. Throws UsageError like ParameterGroups, and if there are patterns but
//! the model does not list its parameters.
ParameterGroups parameter_groups(const Model& model, const ParameterGroupOptions& options);

//! Builds the stages that the schedule assigns to this rank, on its device, and the pipeline, which runs
//! batches of the data. Collective.
Assembly assemble(const tensor::DeviceMesh& mesh, at::Device device, const Model& model,
                  const ModelSplit& split, const schedule::Schedule& schedule, const DataSource& data,
                  const RunOptions& options, Progress& progress);

//! Copies the buffers that a step has changed from the first replica to the others, so that all replicas
//! validate with those of the checkpoint and continue like a run that resumes from it. Collective.
void broadcast_buffers(const tensor::DeviceMesh& mesh, const Assembly& assembly);

//! Gathers all parameters of the model on the CPU of world rank 0. Collective.
std::map<std::string, at::Tensor> gather_parameters(const tensor::DeviceMesh& mesh, const Assembly& assembly);

}  // namespace penstock::train
