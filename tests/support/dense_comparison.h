// Runs a pipeline on this rank and compares all its results with those of a dense run.
#pragma once

#include "support/dense.h"

#include <penstock/comm/world.h>

namespace penstock::test {

struct Case {
  schedule::ScheduleKind kind;
  int stages_per_rank;
  int microbatches;
  int rows;

  std::string text() const;
};

//! Whether the schedule supports these numbers of stages, microbatches and ranks.
bool legal(const Case& test, int ranks);

//! The stages of the model on this rank, placed as the schedule requires.
std::vector<runtime::PipelineStage> stages_for(const PipelineModel& model, const comm::Group& group,
                                               schedule::ScheduleKind kind, int stages_per_rank);

//! Options that train the model.
runtime::PipelineOptions options_for(const PipelineModel& model, int stages);

//! Throws if losses, outputs, gradients, parameters after `steps` steps or buffers differ.
void expect_dense(const PipelineModel& model, const Case& test, const DenseRun& dense, comm::World& world,
                  int steps, std::uint64_t seed);

}  // namespace penstock::test
