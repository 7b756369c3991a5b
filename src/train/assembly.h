// The pipeline of a run: this rank's stages, the schedule, and the optimizer over their parameters.
#pragma once

#include "train/fault.h"
#include "train/measure.h"
#include "train/mesh.h"
#include "train/optimizer.h"
#include "train/watched_stage.h"

#include <penstock/parallel/pipeline_data_parallel.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/schedule/generate.h>
#include <penstock/train/model.h>
#include <penstock/train/whereabouts.h>

#include <memory>
#include <optional>

namespace penstock::train {

//! What the hooks of actions share with the loop.
struct Progress {
  explicit Progress(int rank) : faults(Faults::from_environment(rank)), whereabouts(rank) {}

  //! A place outside of a step's actions: `setup`, `checkpoint`, …
  bool at(const char* place) {
    whereabouts.at(step, place);
    return faults.at(step, place);
  }

  std::int64_t step = 0;
  Faults faults;
  Whereabouts whereabouts;
};

struct Assembly {
  std::shared_ptr<Watch> watch = std::make_shared<Watch>();
  std::map<int, std::shared_ptr<WatchedStage>> stages;  //!< those of this rank
  std::shared_ptr<ShardedStages> sharded;               //!< where replicas share parameters; else null
  ModelState state;                                     //!< what checkpoints hold besides
  std::unique_ptr<PipelineSchedule> pipeline;
  std::unique_ptr<Optimizer> optimizer;

  //! What the planner needs to know of this rank's stages.
  std::map<int, StageBytes> bytes() const;
};

//! The counts of a schedule that trains; UsageError where it is not defined for them.
ScheduleShape checked_shape(const ParallelOptions& options, const std::string& name);
//! The schedule of a name, with the counts that the options ask for.
Schedule schedule_of(const ParallelOptions& options, const std::string& name);

//! Makes the stages that the schedule puts on this rank, and the pipeline. Every rank must call it.
Assembly assemble(const Mesh& mesh, Model& model, const Schedule& schedule, const RunOptions& options,
                  Progress& progress);

//! Parameters of the whole model on the world's first rank; every rank must call it.
std::map<std::string, at::Tensor> gather_parameters(const Mesh& mesh, const Assembly& assembly);

}  // namespace penstock::train
