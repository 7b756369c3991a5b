// Builds a checked PipelineSetup from user input.
#pragma once

#include "runtime/setup/pipeline_setup.h"

namespace penstock::runtime {

//! Makes the program of a built-in schedule for these stages.
schedule::Program program_of(schedule::ScheduleKind kind, const std::vector<PipelineStage>& stages,
                             int microbatches, const PipelineOptions& options);
//! Makes the program of a schedule table.
schedule::Program program_of(const schedule::Schedule& schedule, const std::vector<PipelineStage>& stages,
                             const PipelineOptions& options);
//! Makes a program with only the forward passes, for evaluation.
schedule::Program forward_program(const PipelineSetup& setup);

//! Throws UsageError if stages, program and options are inconsistent.
PipelineSetup make_setup(std::vector<PipelineStage> stages, schedule::Program program,
                         PipelineOptions options);

}  // namespace penstock::runtime
