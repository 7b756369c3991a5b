// From what a user gives to a checked PipelineSetup.
#pragma once

#include "runtime/setup.h"

namespace penstock {

//! The program of a built-in kind for these stages.
Program program_of(ScheduleKind kind, const std::vector<PipelineStage>& stages, int microbatches,
                   const PipelineOptions& options);
//! The program of a table.
Program program_of(const Schedule& schedule, const std::vector<PipelineStage>& stages,
                   const PipelineOptions& options);
//! The same computations without backward, for evaluation.
Program forward_program(const PipelineSetup& setup);

//! Checks that stages, program and options fit each other. UsageError for what does not.
PipelineSetup make_setup(std::vector<PipelineStage> stages, Program program, PipelineOptions options);

}  // namespace penstock
