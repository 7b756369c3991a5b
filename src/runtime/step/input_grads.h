// Gradients of the tensors that the caller passed to a step, by position or by name.
#pragma once

#include "runtime/step/split_batch.h"
#include "runtime/step/step_state.h"

#include <penstock/runtime/step.h>

#include <vector>

namespace penstock::runtime {

//! Stores in `result` the gradient that the step adds to each tensor that requires one: arguments if this
//! rank has the first stage, keyword arguments on every rank.
void return_input_grads(const PipelineSetup& setup, const std::vector<InputGrad>& grads,
                        const UnsplitBatch& input, StepResult& result);
void return_input_grads(const PipelineSetup& setup, const std::vector<InputGrad>& grads,
                        const Microbatches& input, StepResult& result);

//! Adds the gradients to the `.grad` of leaves, and runs the backward pass of non-leaf tensors.
void add_input_grads(const std::vector<InputGrad>& grads);

}  // namespace penstock::runtime
