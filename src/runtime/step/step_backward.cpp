// B, I and W: takes the gradients of a stage's outputs, runs the backward pass or one of its halves, and
// delivers the gradients of the inputs.
#include "base/text.h"
#include "runtime/step/side_stream.h"
#include "runtime/step/step_state.h"

#include <penstock/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace penstock::runtime {

void Step::gather_output_grads(StageId stage, MicrobatchId microbatch, const ActivationRecord& record,
                               edge_list& roots, variable_list& grads) {
  const auto add = [&](const Edge& root, const at::Tensor& grad) {
    if (!grad.defined()) return;
    for (std::size_t i = 0; i < roots.size(); ++i) {
      if (roots[i] != root) continue;
      grads[i] = grads[i] + grad;
      return;
    }
    roots.push_back(root);
    grads.push_back(grad);
  };
  // If one value went to several stages, sum the last stage first, as in a dense backward.
  const std::span<const int> edges = program_.wiring().out_of(stage);
  for (std::size_t e = edges.size(); e-- > 0;) {
    const Message message = mailbox_.take(edges[e], Direction::Backward, microbatch);
    const std::vector<OutputRoot>& outputs_of_edge = record.outputs[e];
    if (message.leaves.size() != outputs_of_edge.size()) {
      throw ShapeError(
          str_cat("received ", message.leaves.size(), " gradients for ", outputs_of_edge.size(), " outputs"));
    }
    for (std::size_t i = 0; i < outputs_of_edge.size(); ++i) {
      if (!message.leaves[i].isTensor()) continue;
      const OutputRoot& output = outputs_of_edge[i];
      add(output.edge, assemble_gradient(message.leaves[i].toTensor(), output.distributed.get()));
    }
  }
  if (record.loss.defined() && record.loss.requires_grad()) {
    add(torch::autograd::impl::gradient_edge(record.loss), initial_gradient(microbatch, record.loss));
  }
}

// Microbatches usually have the same weight: on the CPU, they share the tensor.
at::Tensor Step::initial_gradient(MicrobatchId microbatch, const at::Tensor& loss) {
  const double value = batch_.initial_gradients[microbatch.index()];
  auto& [shared_value, shared] = shared_gradient_;
  if (shared.defined() && shared_value == value && loss.is_cpu() && shared.dtype() == loss.dtype() &&
      shared.sizes() == loss.sizes())
    return shared;
  at::Tensor gradient = at::full_like(loss, value);
  if (loss.is_cpu()) shared_gradient_ = {value, gradient};
  return gradient;
}

void Step::deliver_input_grads(StageId stage, MicrobatchId microbatch, const ActivationRecord& record,
                               std::vector<at::Tensor> grads) {
  const std::size_t caller_count = record.caller_inputs.size();
  for (std::size_t i = 0; i < caller_count; ++i) {
    if (grads[i].defined()) input_grads.push_back({stage, microbatch, record.caller_inputs[i], grads[i]});
  }
  auto next = grads.begin() + static_cast<std::ptrdiff_t>(caller_count);
  auto input = record.inputs.begin() + static_cast<std::ptrdiff_t>(caller_count);
  for (const ActivationRecord::Source& source : record.sources) {
    Message message;
    for (std::size_t i = 0; i < source.count; ++i, ++next, ++input) {
      const at::Tensor grad = local_gradient(*next, *input);
      message.leaves.push_back(grad.defined() ? c10::IValue(grad) : c10::IValue());
    }
    mailbox_.put(source.edge, Direction::Backward, microbatch, std::move(message));
  }
}

void Step::before_weight_gradients(StageId stage) {
  const bool last = ++weight_backwards_[stage.index()] == program_.microbatches();
  DataParallel* const data_parallel = setup_.options.data_parallel.get();
  if (data_parallel == nullptr) return;
  const bool reduce = last && !setup_.stage(stage)->module().accumulates_repeatedly();
  data_parallel->before_backward(stage, reduce ? GradientSync::Reduce : GradientSync::Accumulate);
}

Step::BackwardPart Step::begin_backward(const schedule::Action& action) {
  BackwardPart part{action.stage(), action.microbatch(), action.kind() == schedule::ActionKind::Backward};
  gather_output_grads(part.stage, part.microbatch, record_of(part.stage, part.microbatch), part.roots,
                      part.grads);
  if (part.full) before_weight_gradients(part.stage);
  return part;
}

void Step::run(BackwardPart& part) {
  const ActivationRecord& record = record_of(part.stage, part.microbatch);
  // The engine waits only for the streams of its own leaves, not of those that a recomputed function reaches.
  const StreamJoin join(record.stream);
  if (const auto& builder = setup_.stage(part.stage)->options().weight_work) {
    part.result = penstock::runtime::backward_input_with(builder, part.roots, part.grads, record.inputs);
    if (part.full) part.result.weights.run();
  } else if (part.full) {
    part.result.input_grads = backward_full(part.roots, part.grads, record.inputs);
  } else {
    part.result = penstock::runtime::backward_input(part.roots, part.grads, record.inputs);
  }
}

void Step::end(BackwardPart& part) {
  ActivationRecord& record = record_of(part.stage, part.microbatch);
  deliver_input_grads(part.stage, part.microbatch, record, std::move(part.result.input_grads));
  record = {.stream = record.stream};
  if (!part.full) record.weights = std::move(part.result.weights);
}

void Step::backward_weight(StageId stage, MicrobatchId microbatch) {
  ActivationRecord& record = record_of(stage, microbatch);
  before_weight_gradients(stage);
  const StreamJoin join(record.stream);
  if (record.weights.pending()) record.weights.run();
  record = {};
}

}  // namespace penstock::runtime
