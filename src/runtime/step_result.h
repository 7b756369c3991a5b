// What a finished step gives to its user, and the norm of gradients over all stages.
#pragma once

#include "runtime/shared_parameters.h"
#include "runtime/step_state.h"

#include <vector>

namespace penstock {

//! Collects losses, outputs and times. `shares` are the microbatches' parts of the batch's loss.
StepResult result_of(const PipelineSetup& setup, const Program& program, Step& step,
                     const std::vector<double>& shares);

double clip_over_stages(const PipelineSetup& setup, const SharedParameters& shared, double max_norm,
                        double norm_type);

}  // namespace penstock
