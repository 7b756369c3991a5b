// Runs a pipe through the executor and compares it with the unsplit model, run microbatch by microbatch in
// this thread.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/pipe/pipe.h>
#include <penstock/schedule/generate.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>

namespace penstock::test {

struct Batch {
  value::Args args;
  value::Kwargs kwargs{};
  int microbatches = 4;
};

//! The results of a step.
struct DenseStep {
  at::Tensor loss;
  std::map<std::string, at::Tensor> gradients;
};

//! A loss for any output: the distance of its elements from 0.1.
inline at::Tensor any_loss(const c10::IValue& output, const c10::IValue&, const value::Kwargs&) {
  at::Tensor sum;
  for (const at::Tensor& tensor : value::tensors_of(output)) {
    if (!tensor.requires_grad()) continue;
    const at::Tensor part = (tensor.to(torch::kFloat) - 0.1).square().mean();
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

//! The unsplit graph with its own tensors, in evaluation mode (without dropout).
inline DenseStep train_dense(graph::GraphModule unsplit_graph, const runtime::LossFunction& loss,
                             const Batch& batch) {
  const value::Chunks chunks =
      value::split_args_kwargs_into_chunks(batch.args, batch.kwargs, batch.microbatches);
  double rows = 0;
  for (const auto count : chunks.rows) rows += static_cast<double>(count);
  DenseStep trained{.loss = at::zeros({}), .gradients = {}};
  for (std::size_t m = 0; m < chunks.args.size(); ++m) {
    const at::Tensor part = loss(unsplit_graph.forward(chunks.args[m], chunks.kwargs[m]), {}, {});
    const double share = static_cast<double>(chunks.rows[m]) / rows;
    (part * share).backward();
    trained.loss = trained.loss + part.detach() * share;
  }
  for (const auto& [name, tensor] : unsplit_graph.named_parameters()) {
    if (tensor.grad().defined()) trained.gradients[name] = tensor.grad();
  }
  return trained;
}

//! The unsplit graph of an archive, or of a captured model whose tensors are copied.
inline graph::GraphModule unsplit_module(pipe::Pipe& unsplit) {
  const auto module = unsplit.stage_module(StageId(0));
  // The stage has the slots that are read, in the order of their use.
  std::map<std::string, at::Tensor> held;
  for (std::size_t i = 0; i < module->tensors().size(); ++i)
    held[module->graph().slots[i].names[0]] = module->tensors()[i];
  std::vector<at::Tensor> copies;
  for (const graph::Slot& slot : unsplit.graph().slots) {
    const at::Tensor& tensor = held[slot.names[0]];
    copies.push_back(tensor.defined() ? tensor.detach().clone().set_requires_grad(tensor.requires_grad())
                                      : at::zeros({}));
  }
  graph::GraphModule unsplit_graph(unsplit.graph(), std::move(copies));
  unsplit_graph.train(false);
  return unsplit_graph;
}
inline graph::GraphModule unsplit_module(pipe::Pipe&& unsplit) {
  return unsplit_module(unsplit);
}

//! Runs one step on this rank; checks the gradients of its parameters, and the loss if it is known.
inline void expect_step(pipe::Pipe& pipe, const std::string& schedule, runtime::PipelineOptions options,
                        const Batch& batch, const DenseStep& expected, const comm::Group& group) {
  const int ranks = group.size();
  const schedule::ScheduleShape shape{ranks, pipe.num_stages() / ranks, batch.microbatches};
  const schedule::Schedule table = make_schedule(schedule::parse_schedule_kind(schedule), shape);
  std::vector<runtime::PipelineStage> mine;
  for (const StageId stage : table.placement.stages_of(Rank(group.rank()))) {
    pipe.stage_module(stage)->train(false);
    mine.push_back(pipe.build_stage(stage, at::kCPU, group));
  }
  options.return_outputs = false;
  runtime::PipelineSchedule pipeline(mine, schedule, batch.microbatches,
                                     pipe.pipeline_options(std::move(options)));
  const bool first = mine.front().is_first();
  const runtime::StepResult result =
      pipeline.step(first ? batch.args : value::Args{}, {}, {.kwargs = batch.kwargs});
  if (result.loss.defined()) {
    EXPECT_TRUE(at::allclose(result.loss, expected.loss, 1e-5, 1e-7));
  }
  for (const runtime::PipelineStage& stage : pipeline.stages()) {
    for (const value::NamedTensor& parameter : stage.module().parameters()) {
      const auto gradient = expected.gradients.find(parameter.name);
      ASSERT_EQ(parameter.tensor.grad().defined(), gradient != expected.gradients.end()) << parameter.name;
      if (gradient == expected.gradients.end()) continue;
      EXPECT_TRUE(at::allclose(parameter.tensor.grad(), gradient->second, 1e-5, 1e-6)) << parameter.name;
    }
  }
}

}  // namespace penstock::test
