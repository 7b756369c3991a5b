// Results of a step.
#include "runtime/step_result.h"

#include <penstock/base/error.h>
#include <penstock/value/loss_reduction.h>

#include <torch/csrc/autograd/autograd.h>

namespace penstock {
namespace {

// The gradients of the chunks' tensors, brought back through the cut to the user's own tensors.
Args grads_of_args(const Step& step, const Args& args) {
  std::vector<at::Tensor> wanted, chunks, grads;
  for (const at::Tensor& tensor : tensors_of(c10::ivalue::Tuple::create(args))) {
    if (tensor.requires_grad()) wanted.push_back(tensor);
  }
  for (std::size_t m = 0; m < step.own_input_grads.size(); ++m) {
    std::size_t next = 0;
    for (const at::Tensor& chunk : tensors_of(c10::ivalue::Tuple::create(step.batch().args[m]))) {
      if (!chunk.requires_grad() || next >= step.own_input_grads[m].size()) continue;
      const at::Tensor& grad = step.own_input_grads[m][next++];
      if (!grad.defined()) continue;
      chunks.push_back(chunk);
      grads.push_back(grad);
    }
  }
  std::vector<at::Tensor> found(wanted.size());
  if (!chunks.empty()) found = torch::autograd::grad(chunks, wanted, grads, true, false, true);
  std::size_t next = 0;
  Args result;
  for (const c10::IValue& arg : args) {
    result.push_back(map_leaves(arg, [&](const c10::IValue& leaf) -> c10::IValue {
      if (!leaf.isTensor() || !leaf.toTensor().defined() || !leaf.toTensor().requires_grad()) return {};
      const at::Tensor& grad = found[next++];
      return grad.defined() ? c10::IValue(grad) : c10::IValue();
    }));
  }
  return result;
}

void share_losses(const PipelineSetup& setup, StepResult& result) {
  const int root = setup.rank_of(setup.last_stage()).value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& loss : result.losses) list.push_back(loss);
  if (result.loss.defined()) list.push_back(result.loss);
  const c10::IValue all = setup.group.broadcast_object(c10::IValue(list), root);
  if (setup.rank.value == root) return;
  std::vector<at::Tensor> tensors = tensors_of(all);
  if (tensors.empty()) return;
  result.loss = tensors.back();
  tensors.pop_back();
  result.losses = std::move(tensors);
}

}  // namespace

StepResult result_of(const PipelineSetup& setup, const Program& program, Step& step, const StepInput& input,
                     const std::vector<double>& shares) {
  StepResult result;
  if (setup.local(setup.last_stage())) {
    if (!shares.empty()) {
      result.losses = std::move(step.losses);
      result.loss = LossReduction::reduce(result.losses, shares);
    }
    if (setup.options.return_outputs) result.outputs = merge_chunks(step.outputs, setup.options.output_spec);
  }
  if (setup.options.loss_on_all_ranks && setup.group.size() > 1) share_losses(setup, result);
  if (setup.options.input_grads && setup.local(StageId(0)) && program.has_backward())
    result.input_grads = grads_of_args(step, input.args);
  result.timeline.name = program.name();
  result.timeline.source = TimelineSource::Measured;
  result.timeline.placement = program.placement();
  result.timeline.microbatches = program.microbatches();
  result.timeline.ranks.resize(static_cast<std::size_t>(program.ranks()));
  result.timeline.ranks[static_cast<std::size_t>(setup.rank.value)] = std::move(step.times);
  return result;
}

}  // namespace penstock
