// Every schedule gives what a dense run gives, over thread ranks and over Gloo processes.
#include "runtime/against_dense.h"
#include "runtime/models.h"
#include "support/process_ranks.h"

#include <penstock/comm/thread_ranks.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <iostream>
#include <map>

namespace penstock::test {
namespace {

constexpr std::uint64_t kSeed = 42;
constexpr int kSteps = 3;

const DenseRun& dense_run(const Model& model, int stages, int microbatches, int rows) {
  static std::map<std::tuple<std::string, int, int, int>, DenseRun> runs;
  const auto key = std::tuple(model.name, stages, microbatches, rows);
  const auto found = runs.find(key);
  if (found != runs.end()) return found->second;
  return runs.emplace(key, run_dense(model, stages, microbatches, rows, kSteps, kSeed)).first->second;
}

// Whether the kind is defined for these counts; those that are not must be refused, which the schedules'
// tests check.
bool legal(const Case& test, int ranks) {
  try {
    check_shape(test.kind, {ranks, test.stages_per_rank, test.microbatches});
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

std::vector<Case> cases(int ranks, const std::vector<std::pair<int, int>>& batches) {
  std::vector<Case> all;
  for (const ScheduleInfo& info : schedule_infos()) {
    if (!info.has_backward) continue;
    for (const int per_rank : {1, 2, 3}) {
      for (const auto& [microbatches, rows] : batches) {
        const Case test{info.kind, per_rank, microbatches, rows};
        if (legal(test, ranks)) all.push_back(test);
      }
    }
  }
  return all;
}

class ThreadRanks : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(ThreadRanks, EqualADenseRun) {
  at::set_num_threads(1);
  const auto& [ranks, name] = GetParam();
  // Even, uneven, and fewer microbatches than stages.
  const std::vector<std::pair<int, int>> batches =
      ranks <= 2
          ? std::vector<std::pair<int, int>>{{4, 8}, {6, 13}, {1, 3}}
          : std::vector<std::pair<int, int>>{{ranks * 2, ranks * 4}, {ranks * 2, ranks * 4 + 3}, {2, 5}};
  int run = 0;
  for (const Model& model : all_models()) {
    if (model.name != name) continue;
    for (const Case& test : cases(ranks, batches)) {
      // 24 stages cost the most and promise the least that is new: two models.
      if (ranks == 8 && test.stages_per_rank == 3 && name != "mlp" && name != "skips") continue;
      const DenseRun& dense = dense_run(model, ranks * test.stages_per_rank, test.microbatches, test.rows);
      SCOPED_TRACE(model.name + " on " + std::to_string(ranks) + " ranks: " + test.text());
      ASSERT_NO_THROW(run_thread_ranks(
          ranks, [&](World& world) { expect_dense(model, test, dense, world, kSteps, kSeed); }));
      ++run;
    }
  }
  EXPECT_GT(run, 10);
}

INSTANTIATE_TEST_SUITE_P(
    Models, ThreadRanks,
    ::testing::Combine(::testing::Values(1, 2, 4, 8),
                       ::testing::Values("mlp", "frozen", "transformer", "cnn", "skips", "many")),
    [](const auto& test) { return std::get<1>(test.param) + std::to_string(std::get<0>(test.param)); });

const RankFunction gloo_ranks("against_dense", [] {
  at::set_num_threads(1);
  World world = init();
  int held = 0;
  for (const Model& model : all_models()) {
    for (const Case& test : cases(world.size(), {{4, 10}})) {
      const DenseRun& dense =
          dense_run(model, world.size() * test.stages_per_rank, test.microbatches, test.rows);
      expect_dense(model, test, dense, world, kSteps, kSeed);
      ++held;
    }
  }
  std::cout << "held " << held << std::endl;
  return 0;
});

TEST(GlooProcesses, EqualADenseRun) {
  const RanksOutcome outcome = run_process_ranks("against_dense", 2);
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
}

}  // namespace
}  // namespace penstock::test
