// The result of a finished step, and the gradient norm over all stages.
#pragma once

#include "runtime/backward/shared_parameters.h"
#include "runtime/step/step_state.h"
#include "value/row_order.h"

#include <vector>

namespace penstock::runtime {

//! Collects losses, outputs and times. `weights` are the weights of the microbatches in the batch loss;
//! `rows` are those of the batch. `wait`: see StepOptions.
StepResult result_of(const PipelineSetup& setup, const schedule::Program& program, Step& step,
                     const std::vector<double>& weights, const value::BatchRows& rows, bool wait);

double clip_over_stages(const PipelineSetup& setup, const SharedParameters& shared, double max_norm,
                        double norm_type);

}  // namespace penstock::runtime
