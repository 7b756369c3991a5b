// Every schedule matches a dense run, on thread ranks and on Gloo processes. dense_slow_test.cpp runs the
// remaining cases.
#include "runtime/support/sweep.h"
#include "support/models/stage_models.h"
#include "support/process_ranks.h"

#include <penstock/comm/thread_ranks.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <iostream>
#include <set>

namespace penstock::test {
namespace {

class RuntimeThreadRanks : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(RuntimeThreadRanks, MatchDenseRun) {
  at::set_num_threads(1);
  const auto& [ranks, name] = GetParam();
  int run = 0;
  std::set<schedule::ScheduleKind> kinds;
  for (const PipelineModel& model : all_models()) {
    if (model.name != name) continue;
    for (const Case& test : sweep_cases(ranks, sweep_batches(ranks))) {
      // 24 stages are expensive and add little coverage: only two models.
      if (ranks == 8 && test.stages_per_rank == 3 && name != "mlp" && name != "skips") continue;
      const DenseRun& dense = sweep_dense(model, ranks * test.stages_per_rank, test);
      SCOPED_TRACE(model.name + " on " + std::to_string(ranks) + " ranks: " + test.text());
      ASSERT_NO_THROW(comm::run_thread_ranks(ranks, [&](comm::World& world) {
        expect_dense(model, test, dense, world, kSweepSteps, kSweepSeed);
      }));
      ++run;
      kinds.insert(test.kind);
    }
  }
  std::cout << "held " << run << " cases of " << kinds.size() << " schedules" << std::endl;
  EXPECT_GT(run, 30);
  std::size_t schedules = 0;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos())
    schedules += info.has_backward ? 1 : 0;
  EXPECT_EQ(kinds.size(), schedules);
}

INSTANTIATE_TEST_SUITE_P(
    Models, RuntimeThreadRanks,
    ::testing::Combine(::testing::Values(1, 2, 4, 8),
                       ::testing::Values("mlp", "frozen", "transformer", "cnn", "skips", "many")),
    [](const auto& test) { return std::get<1>(test.param) + std::to_string(std::get<0>(test.param)); });

const RankFunction gloo_ranks("against_dense", [] {
  at::set_num_threads(1);
  comm::World world = comm::init();
  int held = 0;
  for (const PipelineModel& model : all_models()) {
    for (const Case& test : sweep_cases(world.size(), {{4, 10}})) {
      const DenseRun& dense = sweep_dense(model, world.size() * test.stages_per_rank, test);
      expect_dense(model, test, dense, world, kSweepSteps, kSweepSeed);
      ++held;
    }
  }
  std::cout << "held " << held << std::endl;
  return 0;
});

TEST(RuntimeGlooProcesses, MatchDenseRun) {
  const RanksOutcome outcome = run_process_ranks("against_dense", 2);
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
  for (const auto& lines : outcome.lines) {
    ASSERT_FALSE(lines.empty());
    std::cout << lines.back() << " cases" << std::endl;
  }
}

}  // namespace
}  // namespace penstock::test
