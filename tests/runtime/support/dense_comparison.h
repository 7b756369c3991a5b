// Runs a pipeline on this rank and compares everything it gives with a dense run's.
#pragma once

#include "runtime/support/dense.h"

#include <penstock/comm/world.h>

namespace penstock::test {

struct Case {
  schedule::ScheduleKind kind;
  int stages_per_rank;
  int microbatches;
  int rows;

  std::string text() const;
};

//! Whether the schedule has a form of so many stages and microbatches on so many ranks.
bool legal(const Case& test, int ranks);

//! This rank's stages of the model, placed as the kind says.
std::vector<runtime::PipelineStage> stages_for(const PipelineModel& model, const comm::Group& group,
                                               schedule::ScheduleKind kind, int stages_per_rank);

//! Options that train the model.
runtime::PipelineOptions options_for(const PipelineModel& model, int stages);

//! Throws where losses, outputs, gradients, parameters after `steps` steps or buffers differ.
void expect_dense(const PipelineModel& model, const Case& test, const DenseRun& dense, comm::World& world,
                  int steps, std::uint64_t seed);

}  // namespace penstock::test
