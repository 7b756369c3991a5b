// Pipes through the executor, over thread ranks, against the whole model run microbatch by microbatch.
#include "../graph/models.h"
#include "../graph/tensor_file.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/pipe/pipe.h>

#include <gtest/gtest.h>

#include <mutex>

namespace penstock {
namespace {

using c10::IValue;
using test::archive;

at::Tensor loss_of(const IValue& output, const IValue& target, const Kwargs&) {
  const IValue first = flatten(output).leaves[0];
  return torch::mse_loss(first.toTensor(), target.toTensor());
}

struct Expected {
  at::Tensor loss;
  std::map<std::string, at::Tensor> gradients;
};

//! Mean over microbatches of equal size.
Expected dense(const Pipe& whole, const Args& args, const Kwargs& kwargs, const at::Tensor& target,
               int microbatches) {
  const auto module = whole.get_stage_module(0);
  module->train(false);
  const Chunks chunks = split_args_kwargs_into_chunks(args, kwargs, microbatches);
  const auto targets = split_tree(target, microbatches, "target");
  Expected expected{.loss = at::zeros({})};
  for (int m = 0; m < microbatches; ++m) {
    const auto i = static_cast<std::size_t>(m);
    const auto loss = loss_of(whole.forward(chunks.args[i], chunks.kwargs[i]), targets[i], {});
    (loss / microbatches).backward();
    expected.loss = expected.loss + loss.detach() / microbatches;
  }
  for (const auto& [name, tensor] : module->named_parameters()) {
    if (tensor.grad().defined()) expected.gradients[name] = tensor.grad();
  }
  return expected;
}

void expect_trains(const std::string& file, const SplitSpec& spec, int stages, int ranks,
                   const std::string& schedule, const Args& args, const Kwargs& kwargs,
                   const at::Tensor& target) {
  SCOPED_TRACE(file + " in " + std::to_string(stages) + " stages, " + schedule);
  constexpr int microbatches = 4;
  const Pipe whole = load_pt2(archive(file), SplitPolicy([](const Graph&) { return Cuts{}; }));
  const Expected expected = dense(whole, args, kwargs, target, microbatches);
  std::mutex mutex;
  std::map<std::string, at::Tensor> gradients;
  at::Tensor loss;
  run_thread_ranks(ranks, [&](World& world) {
    const Pipe pipe = load_pt2(archive(file), spec);
    ASSERT_EQ(pipe.num_stages(), stages);
    std::vector<PipelineStage> mine;
    for (int s = 0; s < stages; ++s) {
      if (s % ranks != world.rank().value) continue;
      pipe.get_stage_module(s)->train(false);
      mine.push_back(pipe.build_stage(s, at::kCPU, world.group()));
    }
    PipelineSchedule pipeline(mine, schedule, microbatches, pipe.schedule_options({.loss = loss_of}));
    const StepResult result = pipeline.step(args, target, kwargs);
    const std::lock_guard lock(mutex);
    if (result.loss.defined()) loss = result.loss;
    for (const PipelineStage& stage : pipeline.stages()) {
      for (const NamedTensor& parameter : stage.module().parameters()) {
        if (parameter.tensor.grad().defined()) gradients[parameter.name] = parameter.tensor.grad();
      }
    }
  });
  ASSERT_TRUE(loss.defined());
  EXPECT_TRUE(at::allclose(loss, expected.loss, 1e-6, 1e-7));
  ASSERT_EQ(gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    EXPECT_TRUE(at::allclose(gradients.at(name), gradient, 1e-5, 1e-6)) << name;
  }
}

TEST(PipeTrains, AsTheWholeDoesOverRanks) {
  at::set_num_threads(1);
  torch::manual_seed(4);
  const Args mlp = {torch::randn({8, 6})};
  expect_trains("mlp.pt2", Balanced{2}, 2, 2, "1F1B", mlp, {}, torch::randn({8, 6}));
  expect_trains("mlp.pt2", Balanced{4}, 4, 2, "Interleaved1F1B", mlp, {}, torch::randn({8, 6}));
  const Args gpt = {torch::randint(0, 13, {8, 5})};
  expect_trains("gpt.pt2", AtMarks{}, 2, 2, "GPipe", gpt, {}, torch::randn({8, 5, 13}));  // a tied head
  expect_trains("gpt.pt2", Balanced{3, BalanceBy::Flops}, 3, 3, "1F1B", gpt, {}, torch::randn({8, 5, 13}));
}

TEST(PipeTrains, WithValuesThatSkipStages) {
  at::set_num_threads(1);
  torch::manual_seed(5);
  // Everywhere a cut is legal, so that residuals and the user's inputs cross several stages.
  const SplitPolicy five = [](const Graph& graph) {
    const Cuts legal = legal_cuts(graph);
    return Cuts{legal[2], legal[legal.size() / 2], legal[legal.size() - 2]};
  };
  expect_trains("gpt.pt2", five, 4, 2, "Interleaved1F1B", {torch::randint(0, 13, {8, 5})}, {},
                torch::randn({8, 5, 13}));
}

}  // namespace
}  // namespace penstock
