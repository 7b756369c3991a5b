// The pipeline of a run: the stages of this rank, the schedule, and the optimizer of their parameters.
#pragma once

#include "train/diagnostics/fault.h"
#include "train/diagnostics/instrumented_stage.h"
#include "train/loop/measure.h"
#include "train/loop/mesh.h"
#include "train/loop/optimizer.h"

#include <penstock/parallel/pipeline_data_parallel.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/schedule/generate.h>
#include <penstock/train/model.h>
#include <penstock/train/progress_board.h>

#include <memory>
#include <optional>

namespace penstock::train {

//! State shared by the action hooks and the training loop.
struct Progress {
  explicit Progress(int rank) : faults(Faults::from_environment(rank)), location(rank) {}

  //! Reports a point outside the actions of a step: `setup`, `checkpoint`, … Triggers the faults due there;
  //! returns true if a parameter must become NaN.
  bool at(const char* place) {
    location.at(step, place);
    return faults.at(step, place);
  }

  std::int64_t step = 0;
  Faults faults;
  RankProgress location;
};

struct Assembly {
  std::shared_ptr<StageObserver> watch = std::make_shared<StageObserver>();
  std::map<int, std::shared_ptr<InstrumentedStage>> stages;  //!< the stages of this rank
  std::shared_ptr<parallel::ShardedStages> sharded;          //!< null unless sharded over replicas
  ModelState state;                                          //!< additional state for checkpoints
  std::unique_ptr<runtime::PipelineSchedule> pipeline;
  std::unique_ptr<Optimizer> optimizer;

  //! Returns the sizes of the stages of this rank, for the planner.
  std::map<int, StageBytes> bytes() const;
};

//! Returns the counts of a training schedule. Throws UsageError if the schedule does not support them.
schedule::ScheduleShape checked_shape(const ParallelOptions& options, const std::string& name);
//! Generates the schedule with this name for the counts in the options.
schedule::Schedule schedule_of(const ParallelOptions& options, const std::string& name);

//! Builds the stages that the schedule assigns to this rank, and the pipeline. Collective.
Assembly assemble(const Mesh& mesh, Model& model, const schedule::Schedule& schedule,
                  const RunOptions& options, Progress& progress);

//! Gathers all parameters of the model on world rank 0. Collective.
std::map<std::string, at::Tensor> gather_parameters(const Mesh& mesh, const Assembly& assembly);

}  // namespace penstock::train
