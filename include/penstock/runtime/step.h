// Options and results of a step, and batches that are already split.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/schedule/timeline.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace penstock::runtime {

//! Options of one step. All values are those of this rank, and are split into microbatches like the batch.
struct StepOptions {
  value::Kwargs kwargs{};       //!< for every stage that takes them; ignored on ranks without such a stage
  value::Kwargs loss_kwargs{};  //!< further arguments of the loss
  //! Further keyword arguments of single stages, such as a mask or labels. Each rank passes those of its own
  //! stages; entries for stages of other ranks are ignored.
  std::map<StageId, value::Kwargs> stage_kwargs{};
  //! The denominator of the weights of the microbatch losses (see PipelineOptions::reduction), on the rank of
  //! the last stage; by default the sum of the weights. Set it if this step processes one of several shares
  //! of a batch whose gradients are averaged (replicas, accumulated steps): use the sum of weights over the
  //! full batch divided by the number of shares. The mean of the losses and gradients of all shares is then
  //! that of the full batch, however the weights are distributed.
  std::optional<double> loss_denominator{};
  //! Whether the result contains the outputs; overrides PipelineOptions::return_outputs.
  std::optional<bool> return_outputs{};
  //! `eval` only: keeps the current mode of the modules, for example to find the cause of a NaN in training
  //! mode.
  bool keep_mode = false;
  //! If false, the call returns when the work of a device is enqueued: losses stay on the device (unless
  //! `loss_on_all_ranks` is set), and StepResult::read_timeline replaces the timeline.
  bool wait = true;
  //! Whether the timeline contains the memory in use on this rank, read when the step starts and after each
  //! action: the bytes of tensors on the devices of its stages, and for stages on the CPU those on the heap
  //! of the process. A read takes microseconds, which no action includes, and never waits for a device.
  bool measure_memory = false;
};

//! A batch that the caller has split: every non-empty list has one entry per microbatch. The rank of the
//! first stage passes `args`, the rank of the last stage `targets`; the rest is as in StepOptions.
//! Microbatches may have different numbers of rows; a mean of losses weights them by their rows.
struct Microbatches {
  std::vector<value::Args> args{};
  std::vector<value::Kwargs> kwargs{};
  std::vector<c10::IValue> targets{};
  std::vector<value::Kwargs> loss_kwargs{};
  std::map<StageId, std::vector<value::Kwargs>> stage_kwargs{};
  std::optional<double> loss_denominator{};
  std::optional<bool> return_outputs{};
  bool keep_mode = false;
  bool wait = true;
  bool measure_memory = false;
};

//! The results of a step on this rank.
struct StepResult {
  //! The unreduced loss of each microbatch: on the rank of the last stage, or on all ranks if
  //! `loss_on_all_ranks` is set. Losses are on the CPU, also if the stages are on another device.
  std::vector<at::Tensor> losses;
  //! The batch loss, reduced from `losses`, on the CPU. Undefined if there are none.
  at::Tensor loss;
  //! The merged outputs of the last stage; None on other ranks or if `return_outputs` is false.
  c10::IValue outputs;
  //! With `input_grads`: the gradient that the step added to each argument (on the rank of the first stage)
  //! and to each keyword argument given on this rank. None if there is no gradient. For a batch that the
  //! caller split, each entry is a tuple with one gradient per microbatch.
  value::Args input_grads;
  value::Kwargs kwarg_grads;
  std::map<StageId, value::Kwargs> stage_kwarg_grads;
  //! The start and end of this rank's actions; the lists of other ranks are empty. On a device, these are
  //! times of its current stream, so `step` returns when the device has finished the step. With
  //! StepOptions::measure_memory, also the memory in use on this rank.
  schedule::Timeline timeline;
  //! Without StepOptions::wait: returns the timeline. Waits only if the device has not finished the step.
  std::function<schedule::Timeline()> read_timeline;
};

}  // namespace penstock::runtime
