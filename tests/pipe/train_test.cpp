// Pipes through the executor, over thread ranks and over processes, against the whole model run microbatch by
// microbatch.
#include "../graph/models.h"
#include "../graph/tensor_file.h"
#include "executor.h"
#include "support/process_ranks.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/comm/world.h>

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <random>

namespace penstock {
namespace {

using test::archive;
using test::Batch;

const SplitSpec uncut = SplitPolicy([](const Graph&) { return Cuts{}; });

//! A batch of 8 rows for each of the committed archives. Thread ranks draw it at the same time, so from
//! generators of their own.
Batch batch_for(const std::string& name) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(4);
  const auto normal = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator); };
  if (name == "gpt") return {{at::randint(0, 13, {8, 5}, generator, at::kLong)}};
  if (name == "convnet") return {{normal({8, 2, 8, 8})}};
  if (name == "lstm") return {{normal({8, 5, 3})}};
  if (name == "mixed") {
    c10::Dict<std::string, at::Tensor> other;
    other.insert("u", normal({8, 3}));
    return {{normal({8, 4}), true}, {{"other", other}}};
  }
  return {{normal({8, 6})}};
}

//! `stages` stages at random legal cuts; the same on every rank.
SplitPolicy random_cuts(int stages, unsigned seed) {
  return [stages, seed](const Graph& graph) {
    const Cuts legal = legal_cuts(graph);
    Cuts cuts;
    std::mt19937 random(seed);
    std::sample(legal.begin(), legal.end(), std::back_inserter(cuts), static_cast<std::size_t>(stages - 1),
                random);
    return cuts;
  };
}

PipelineOptions own_loss() {
  PipelineOptions options;
  options.loss = test::any_loss;
  options.loss_needs_target = false;
  return options;
}

void expect_archive_trains(const std::string& name, int stages, const std::string& schedule,
                           const Group& group) {
  SCOPED_TRACE(name + " in " + std::to_string(stages) + " stages, " + schedule + ", " +
               std::to_string(group.size()) + " ranks");
  const Batch batch = batch_for(name);
  const auto expected =
      test::train_dense(test::whole_of(load_pt2(archive(name + ".pt2"), uncut)), test::any_loss, batch);
  const auto seed = static_cast<unsigned>(stages);
  const Pipe pipe = load_pt2(archive(name + ".pt2"), random_cuts(stages, seed));
  test::expect_step(pipe, schedule, own_loss(), batch, expected, group);
}

//! The random state is the process's: thread ranks make their batches one after the other.
void expect_all_train(const Group& group) {
  const int ranks = group.size();
  for (const std::string name : {"mlp", "gpt", "convnet", "mixed", "lstm"}) {
    const auto most =
        static_cast<int>(legal_cuts(load_pt2(archive(name + ".pt2"), uncut).graph()).size()) + 1;
    for (int stages = ranks; stages <= std::min(8, most); stages += ranks) {
      expect_archive_trains(name, stages, stages == ranks ? "1F1B" : "Interleaved1F1B", group);
    }
  }
  expect_archive_trains("gpt", 2 * ranks, "ZBVZeroBubble", group);
}

TEST(PipeTrains, AsTheWholeDoesOverFourRanks) {
  at::set_num_threads(1);
  run_thread_ranks(4, [](World& world) { expect_all_train(world.group()); });
}

const test::RankFunction train_in_processes("pipe_trains", [] {
  at::set_num_threads(1);
  const World world = init();
  expect_all_train(world.group());
  return ::testing::Test::HasFailure() ? 1 : 0;
});

TEST(PipeTrains, AsTheWholeDoesOverProcesses) {
  const auto outcome = test::run_process_ranks("pipe_trains", 2);
  EXPECT_TRUE(outcome.result.ok) << outcome.text();
}

TEST(PipeTrains, AtMarksBalancedAndWithCapturedModels) {
  at::set_num_threads(1);
  const Batch tokens = batch_for("gpt");
  const auto expected =
      test::train_dense(test::whole_of(load_pt2(archive("gpt.pt2"), uncut)), test::any_loss, tokens);
  for (const SplitSpec& spec : {SplitSpec(AtMarks{}), SplitSpec(Balanced{2, BalanceBy::Flops})}) {
    const Pipe pipe = load_pt2(archive("gpt.pt2"), spec);
    run_thread_ranks(2, [&](World& world) {
      test::expect_step(pipe, "GPipe", own_loss(), tokens, expected, world.group());
    });
  }
  torch::manual_seed(6);
  test::UNet unet;
  const Batch images{{torch::randn({4, 1, 8, 8})}};
  const Args example{torch::randn({1, 1, 8, 8})};
  const auto wanted =
      test::train_dense(test::whole_of(pipeline(unet, example, {}, uncut)), test::any_loss, images);
  for (const auto& [stages, schedule] : {std::pair(3, "1F1B"), std::pair(6, "Interleaved1F1B")}) {
    unet->zero_grad();
    const Pipe pipe = pipeline(unet, example, {}, random_cuts(stages, 2));
    run_thread_ranks(3, [&](World& world) {
      test::expect_step(pipe, schedule, own_loss(), images, wanted, world.group());
    });
  }
}

}  // namespace
}  // namespace penstock
