// F: takes the inputs of a stage for a microbatch, runs the module, and delivers its outputs.
#include "base/text.h"
#include "runtime/stage/run_module.h"
#include "runtime/step/step_state.h"

#include <penstock/base/error.h>
#include <penstock/tensor/flatten.h>

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace penstock::runtime {
namespace {

// The items of a tuple are the arguments of the next stage; any other value is its only argument.
value::Args as_args(const c10::IValue& output) {
  if (!output.isTuple()) return {output};
  return output.toTupleRef().elements().vec();
}

c10::IValue as_tree(const value::Args& args) {
  return c10::ivalue::Tuple::create(args);
}

bool requires_grad(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && value.toTensor().requires_grad();
  if (!value.isTuple() && !value.isList() && !value.isGenericDict()) return false;
  const std::vector<at::Tensor> tensors = value::tensors_of(value);
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.requires_grad(); });
}

// Detaches a tensor from the autograd graph and from its mesh.
at::Tensor detach_from_graph(const at::Tensor& tensor) {
  if (tensor::is_dtensor(tensor)) return tensor::flatten_dtensor(tensor).local;
  at::Tensor detached = tensor.detach();
  if (tensor.requires_grad()) detached.requires_grad_(true);
  return detached;
}

// With weight 0, the gradient of everything the loss depends on is 0, even if the loss is NaN.
at::Tensor without_weight(const at::Tensor& loss, const c10::IValue& output) {
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& tensor : value::tensors_of(output)) {
    if (tensor.requires_grad()) outputs.push_back(tensor);
  }
  if (!loss.requires_grad() || outputs.empty()) return loss;
  const std::vector<at::Tensor> grads =
      torch::autograd::grad({loss}, outputs, {}, /*retain_graph=*/true, /*create_graph=*/false,
                            /*allow_unused=*/true);
  at::Tensor none = loss.detach();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!grads[i].defined()) continue;
    const at::Tensor zero = (outputs[i] * 0).sum();
    none = none + (tensor::is_dtensor(zero) ? tensor::full_tensor(zero) : zero);
  }
  return none;
}

}  // namespace

Step::ForwardPart Step::begin_forward(StageId stage_index, MicrobatchId microbatch) {
  const PipelineStage& stage = *setup_.stage(stage_index);
  ForwardPart part{stage_index, microbatch};
  gather_inputs(stage, microbatch, record_of(stage_index, microbatch), part.args, part.kwargs);
  if (stage.options().input) validate_tree_metadata(*stage.options().input, as_tree(part.args), "input");
  return part;
}

void Step::run(ForwardPart& part) const {
  part.result =
      run_module(*setup_.stage(part.stage), part.args, part.kwargs,
                 {setup_.options.seed, number_, part.stage, part.microbatch, setup_.options.replica});
}

void Step::end(const ForwardPart& part) {
  const PipelineStage& stage = *setup_.stage(part.stage);
  ActivationRecord& record = record_of(part.stage, part.microbatch);
  if (stage.options().output) validate_tree_metadata(*stage.options().output, part.result.output, "output");
  deliver_outputs(stage, part.microbatch, record, part.result);
  if (stage.is_last()) finish_last(part.microbatch, record, part.result.output);
  if (!program_.has_backward()) record = {};
}

// Takes the values that the caller gave. Tensors that require a gradient are detached: the backward pass of
// the stage ends there, and the gradients are added to the caller's tensors at the end of the step.
void Step::gather_caller_inputs(const PipelineStage& stage, MicrobatchId microbatch, ActivationRecord& record,
                                value::Args& args, value::Kwargs& kwargs) {
  const auto m = microbatch.index();
  const auto s = stage.index().index();
  const auto detached = [&](const at::Tensor& tensor) {
    at::Tensor leaf = tensor.detach();
    if (!tensor.requires_grad() || !program_.has_backward()) return leaf;
    leaf.requires_grad_(true);
    record.inputs.push_back(leaf);
    record.caller_inputs.push_back(tensor);
    return leaf;
  };
  if (stage.is_first()) {
    args = batch_.args[m];
    for (c10::IValue& arg : args) arg = value::map_tensors(arg, detached);
  }
  if (batch_.kwargs[s].empty()) return;
  kwargs = batch_.kwargs[s][m];
  for (auto& [name, value] : kwargs) {
    if (requires_grad(value)) value = value::map_tensors(value, detached);
  }
}

void Step::gather_inputs(const PipelineStage& stage, MicrobatchId microbatch, ActivationRecord& record,
                         value::Args& args, value::Kwargs& kwargs) {
  gather_caller_inputs(stage, microbatch, record, args, kwargs);
  for (const int edge : program_.wiring().into(stage.index())) {
    Message message = mailbox_.take(edge, Direction::Forward, microbatch);
    for (std::size_t i = 0; i < message.dtensors.size(); ++i) {
      if (message.dtensors[i])
        message.leaves[i] = assemble_dtensor(message.leaves[i].toTensor(), *message.dtensors[i], stage);
    }
    const std::size_t before = record.inputs.size();
    for (const c10::IValue& leaf : message.leaves) {
      if (leaf.isTensor() && leaf.toTensor().defined() && leaf.toTensor().requires_grad())
        record.inputs.push_back(leaf.toTensor());
    }
    record.sources.push_back({edge, record.inputs.size() - before});
    const c10::IValue tree = unflatten(message.leaves, *message.structure);
    const auto& parts = tree.toTupleRef().elements();
    if (program_.wiring().edge(edge).from.value + 1 == stage.index().value) args = as_args(parts[0]);
    const std::vector<std::string>& names = setup_.edge_skips[static_cast<std::size_t>(edge)];
    for (std::size_t i = 0; i < names.size(); ++i) kwargs[names[i]] = parts[i + 1];
  }
}

void Step::deliver_outputs(const PipelineStage& stage, MicrobatchId microbatch, ActivationRecord& record,
                           const StageResult& result) {
  for (const int edge : program_.wiring().out_of(stage.index())) {
    const bool next = program_.wiring().edge(edge).to.value == stage.index().value + 1;
    std::vector<c10::IValue> parts{next ? result.output : c10::IValue()};
    for (const std::string& name : setup_.edge_skips[static_cast<std::size_t>(edge)]) {
      const auto found = result.skips.find(name);
      if (found == result.skips.end()) {
        throw UsageError("the stage does not return the skip value " + quote(name), {},
                         "return {output, {{name, value}}} from its forward");
      }
      parts.push_back(found->second);
    }
    value::FlatTree flat = value::flatten(c10::ivalue::Tuple::create(std::move(parts)));
    std::vector<OutputRoot>& outputs_of_edge = record.outputs.emplace_back();
    std::vector<std::optional<DTensorMeta>> dtensors;
    for (std::size_t i = 0; i < flat.leaves.size(); ++i) {
      c10::IValue& leaf = flat.leaves[i];
      if (!leaf.isTensor() || !leaf.toTensor().defined()) continue;
      if (program_.has_backward() && leaf.toTensor().requires_grad()) {
        outputs_of_edge.push_back(
            {torch::autograd::impl::gradient_edge(leaf.toTensor()), SentDTensor::of(leaf.toTensor())});
      }
      if (tensor::is_dtensor(leaf.toTensor())) {
        dtensors.resize(flat.leaves.size());
        dtensors[i] = DTensorMeta::of(leaf.toTensor());
      }
      leaf = detach_from_graph(leaf.toTensor());
    }
    mailbox_.put(edge, Direction::Forward, microbatch,
                 {std::move(flat.leaves), std::make_shared<const value::Structure>(std::move(flat.structure)),
                  std::move(dtensors)});
  }
}

void Step::finish_last(MicrobatchId microbatch, ActivationRecord& record, const c10::IValue& output) {
  const auto m = microbatch.index();
  if (setup_.options.loss && (!batch_.targets.empty() || !setup_.options.loss_needs_target)) {
    static const value::Kwargs none;
    const value::Kwargs& more = batch_.loss_kwargs.empty() ? none : batch_.loss_kwargs[m];
    record.loss =
        setup_.options.loss(output, batch_.targets.empty() ? c10::IValue() : batch_.targets[m], more);
    if (tensor::is_dtensor(record.loss)) record.loss = tensor::full_tensor(record.loss);
    if (!record.loss.defined() || record.loss.numel() != 1) {
      throw ShapeError("the loss of a microbatch must be a single number", {},
                       "reduce it over the rows, and set PipelineOptions::reduction accordingly");
    }
    losses[m] = record.loss.detach();
    if (batch_.initial_gradients[m] == 0) record.loss = without_weight(record.loss, output);
  }
  if (return_outputs_)
    outputs[m] = value::map_tensors(output, [](const at::Tensor& tensor) { return tensor.detach(); });
}

}  // namespace penstock::runtime
