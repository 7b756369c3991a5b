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
//! last no `target`. Whatever is given is cut into microbatches.
struct StepInput {
  Args args;             //!< of the first stage
  Kwargs kwargs;         //!< of every stage that takes them; ranks without one pass over them
  c10::IValue target;    //!< of the loss
  Kwargs loss_kwargs{};  //!< further arguments of the loss
  //! Further keyword arguments for one stage, for example a mask or labels.
  std::map<StageId, Kwargs> stage_kwargs{};
  //! What the weights of the microbatches' losses (PipelineOptions::reduction) are divided by, on the rank of
  //! the last stage; without it, by their sum. For a batch of which this step is one of several parts, over
  //! which gradients are averaged (replicas, accumulated steps): the sum over the whole batch divided by the
  //! number of parts. Then the mean of the parts' losses and gradients is that of the whole batch, however
  //! the weights are distributed.
  std::optional<double> loss_denominator{};
};

struct StepResult {
  //! The user's own loss of each microbatch: on the rank of the last stage, or on all if asked for.
  std::vector<at::Tensor> losses;
  //! The batch's: their reduction. Undefined where there are none.
  at::Tensor loss;
  //! The last stage's outputs, merged; None elsewhere or if not asked for.
  c10::IValue outputs;
  //! If asked for, on the rank of the first stage: the gradient of each argument (None where it needs none).
  Args input_grads;
  //! When this rank's actions ran; the other ranks' lists are empty.
  Timeline timeline;
};

}  // namespace penstock
