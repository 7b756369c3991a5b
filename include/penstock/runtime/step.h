// What a step takes and what it gives.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/schedule/timeline.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <optional>
#include <vector>

namespace penstock {

//! The batch, as far as this rank has it: ranks without the first stage need no `args`, ranks without the
//! last no `target`. Whatever is given is split into microbatches.
//!
//! Tensors that require a gradient are treated alike whether they are given by position or by name: a step
//! with backward adds the gradient of the batch's loss to the `.grad` of leaves, and runs the backward of the
//! operations that made the others, once and at the end.
struct StepInput {
  Args args{};           //!< of the first stage
  Kwargs kwargs{};       //!< of every stage that takes them; ranks without one pass over them
  c10::IValue target{};  //!< of the loss
  Kwargs loss_kwargs{};  //!< further arguments of the loss
  //! Further keyword arguments for one stage, for example a mask or labels.
  std::map<StageId, Kwargs> stage_kwargs{};
  //! What the weights of the microbatches' losses (PipelineOptions::reduction) are divided by, on the rank of
  //! the last stage; without it, by their sum. For a batch of which this step is one of several parts, over
  //! which gradients are averaged (replicas, accumulated steps): the sum over the whole batch divided by the
  //! number of parts. Then the mean of the parts' losses and gradients is that of the whole batch, however
  //! the weights are distributed.
  std::optional<double> loss_denominator{};
  //! Whether the result has the outputs, if not as PipelineOptions::return_outputs says.
  std::optional<bool> return_outputs{};
  //! `eval` only: leaves the modules in the mode that they are in, for example to look for the cause of a
  //! NaN in training mode.
  bool keep_mode = false;
};

//! A batch that the caller has split: where a list is not empty, it has an entry for each microbatch. Else as
//! StepInput. Microbatches may differ in their number of rows; a mean of losses weighs them by it.
struct Microbatches {
  std::vector<Args> args{};
  std::vector<Kwargs> kwargs{};
  std::vector<c10::IValue> targets{};
  std::vector<Kwargs> loss_kwargs{};
  std::map<StageId, std::vector<Kwargs>> stage_kwargs{};
  std::optional<double> loss_denominator{};
  std::optional<bool> return_outputs{};
  bool keep_mode = false;
};

struct StepResult {
  //! The user's own loss of each microbatch: on the rank of the last stage, or on all if asked for.
  std::vector<at::Tensor> losses;
  //! The batch's: their reduction. Undefined where there are none.
  at::Tensor loss;
  //! The last stage's outputs, merged; None elsewhere or if not asked for.
  c10::IValue outputs;
  //! If asked for: what the step added to the gradient of each argument, on the rank of the first stage, and
  //! of each keyword argument that this rank was given. None where there is none. Of a batch that the caller
  //! split, a tuple with the gradient of each microbatch's.
  Args input_grads;
  Kwargs kwarg_grads;
  std::map<StageId, Kwargs> stage_kwarg_grads;
  //! When this rank's actions ran; the other ranks' lists are empty.
  Timeline timeline;
};

}  // namespace penstock
