// Gradients of the tensors that the caller gave to a step, by position or by name.
#pragma once

#include "runtime/step_state.h"

#include <penstock/runtime/step.h>

#include <vector>

namespace penstock {

//! What the step adds to the gradient of each tensor that requires one, into `result`: of the arguments where
//! this rank has the first stage, of the keyword arguments everywhere.
void return_input_grads(const PipelineSetup& setup, const std::vector<OwnGrad>& grads, const StepInput& input,
                        StepResult& result);
void return_input_grads(const PipelineSetup& setup, const std::vector<OwnGrad>& grads,
                        const Microbatches& input, StepResult& result);

//! Adds them to `.grad` of leaves, and runs the backward of what made the others.
void add_input_grads(const std::vector<OwnGrad>& grads);

}  // namespace penstock
