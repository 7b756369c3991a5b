// Builds the result of a step.
#include "runtime/step/step_result.h"

#include "value/chunk_rules.h"

#include <penstock/runtime/loss_reduction.h>

#include <ATen/Tensor.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <memory>

namespace penstock::runtime {
namespace {

void broadcast_losses(const PipelineSetup& setup, StepResult& result) {
  const int root = setup.rank_of(setup.last_stage()).value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& loss : result.losses) list.push_back(loss);
  if (result.loss.defined()) list.push_back(result.loss);
  const c10::IValue all = setup.group.broadcast_object(c10::IValue(list), root);
  if (setup.rank.value == root) return;
  std::vector<at::Tensor> tensors = value::tensors_of(all);
  if (tensors.empty()) return;
  result.loss = tensors.back();
  tensors.pop_back();
  result.losses = std::move(tensors);
}

// Copies the losses of a device to the CPU, with one wait for the device.
void move_to_cpu(std::vector<at::Tensor>& losses) {
  const auto on_cpu = [](const at::Tensor& loss) { return !loss.defined() || loss.is_cpu(); };
  if (std::all_of(losses.begin(), losses.end(), on_cpu)) return;
  const auto same = [&](const at::Tensor& loss) {
    return loss.defined() && loss.scalar_type() == losses[0].scalar_type() &&
           loss.device() == losses[0].device();
  };
  if (!std::all_of(losses.begin(), losses.end(), same)) {
    for (at::Tensor& loss : losses) loss = loss.defined() ? loss.cpu() : loss;
    return;
  }
  std::vector<at::Tensor> numbers;
  for (const at::Tensor& loss : losses) numbers.push_back(loss.view({1}));
  const at::Tensor all = at::cat(numbers).cpu();
  for (std::size_t i = 0; i < losses.size(); ++i)
    losses[i] = all[static_cast<std::int64_t>(i)].reshape(losses[i].sizes()).clone();
}

}  // namespace

StepResult result_of(const PipelineSetup& setup, const schedule::Program& program, Step& step,
                     const std::vector<double>& weights, const value::BatchRows& rows, bool wait) {
  StepResult result;
  const bool broadcast = setup.options.loss_on_all_ranks && setup.group.size() > 1;
  if (setup.local(setup.last_stage())) {
    if (!weights.empty()) {
      result.losses = std::move(step.losses);
      if (wait || broadcast) move_to_cpu(result.losses);
      result.loss = LossReduction::reduce(result.losses, weights);
    }
    if (!step.outputs.empty()) result.outputs = merge_chunks(step.outputs, setup.options.output_spec, rows);
  }
  if (broadcast) broadcast_losses(setup, result);
  schedule::Timeline timeline;
  timeline.name = program.name();
  timeline.source = schedule::TimelineSource::Measured;
  timeline.placement = program.placement();
  timeline.microbatches = program.microbatches();
  timeline.ranks.resize(static_cast<std::size_t>(program.ranks()));
  const auto clock = std::make_shared<ActionClock>(step.take_clock());
  auto read = [clock, timeline = std::move(timeline), rank = setup.rank.index()]() mutable {
    timeline.ranks[rank] = clock->times();
    if (std::vector<schedule::MemorySample> memory = clock->memory(); !memory.empty()) {
      timeline.memory.resize(timeline.ranks.size());
      timeline.memory[rank] = std::move(memory);
    }
    return timeline;
  };
  if (wait) {
    result.timeline = read();
  } else {
    result.read_timeline = std::move(read);
  }
  return result;
}

}  // namespace penstock::runtime
