// The rest of the sweep against dense runs: 24 stages of every model over thread ranks, and all cases over
// Gloo processes.
#include "runtime/support/sweep.h"
#include "support/models/stage_models.h"
#include "support/process_ranks.h"

#include <penstock/comm/thread_ranks.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <iostream>

namespace penstock::test {
namespace {

class RuntimeManyStages : public ::testing::TestWithParam<std::string> {};

TEST_P(RuntimeManyStages, MatchDenseRun) {
  at::set_num_threads(1);
  constexpr int ranks = 8;
  int run = 0;
  for (const PipelineModel& model : all_models()) {
    if (model.name != GetParam()) continue;
    for (const Case& test : sweep_cases(ranks, sweep_batches(ranks))) {
      if (test.stages_per_rank != 3) continue;
      const DenseRun& dense = sweep_dense(model, ranks * test.stages_per_rank, test);
      SCOPED_TRACE(model.name + ": " + test.text());
      ASSERT_NO_THROW(comm::run_thread_ranks(ranks, [&](comm::World& world) {
        expect_dense(model, test, dense, world, kSweepSteps, kSweepSeed);
      }));
      ++run;
    }
  }
  std::cout << "held " << run << " cases" << std::endl;
  EXPECT_GT(run, 5);
}

INSTANTIATE_TEST_SUITE_P(Models, RuntimeManyStages, ::testing::Values("frozen", "transformer", "cnn", "many"),
                         [](const auto& test) { return test.param; });

const RankFunction gloo_sweep("gloo_sweep", [] {
  at::set_num_threads(1);
  const std::string name = std::getenv("SWEEP_MODEL");
  comm::World world = comm::init();
  int held = 0;
  for (const PipelineModel& model : all_models()) {
    if (model.name != name) continue;
    for (const Case& test : sweep_cases(world.size(), sweep_batches(world.size()))) {
      const DenseRun& dense = sweep_dense(model, world.size() * test.stages_per_rank, test);
      expect_dense(model, test, dense, world, kSweepSteps, kSweepSeed);
      ++held;
    }
  }
  std::cout << "held " << held << std::endl;
  return 0;
});

class RuntimeGlooSweep : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(RuntimeGlooSweep, MatchesDenseRun) {
  const auto& [ranks, name] = GetParam();
  RanksOptions options;
  options.deadline = std::chrono::minutes(8);
  options.environment = {{"SWEEP_MODEL", name}, {"OMP_NUM_THREADS", "1"}};
  const RanksOutcome outcome = run_process_ranks("gloo_sweep", ranks, options);
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
  const auto expected = sweep_cases(ranks, sweep_batches(ranks)).size();
  for (const auto& lines : outcome.lines) EXPECT_EQ(lines.back(), "held " + std::to_string(expected));
  std::cout << "held " << expected << " cases" << std::endl;
}

INSTANTIATE_TEST_SUITE_P(
    Models, RuntimeGlooSweep,
    ::testing::Combine(::testing::Values(1, 2, 4, 8),
                       ::testing::Values("mlp", "frozen", "transformer", "cnn", "skips", "many")),
    [](const auto& test) { return std::get<1>(test.param) + std::to_string(std::get<0>(test.param)); });

}  // namespace
}  // namespace penstock::test
