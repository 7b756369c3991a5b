// The planner's partition search compared with brute force over all partitions, and with a local search.
#include "plan/partition_search.h"

#include "partition_problems.h"

namespace penstock::plan {
namespace {

using namespace test;

TEST(PlanPartitionSearch, PrefersLightLastStagesOverMinimalSlowestStage) {
  Problem problem;
  for (const double time : {8, 11, 2, 1, 18, 5, 4, 11}) problem.layers.push_back(layer(time));
  problem.options = {.ranks = 4,
                     .microbatches = {8},
                     .stages_per_rank = {1},
                     .schedules = {schedule::ScheduleKind::OneFOneB},
                     .recomputation = false};
  // The partition 0 1 3 5 has the fastest slowest stage, 20, and takes 600; 0 3 5 6 and 0 3 5 7 take 573.
  const Plan plan = problem.plan();
  EXPECT_EQ(plan.step_time, 573);
  EXPECT_EQ(plan.first_layer[1], 3);
  EXPECT_EQ(plan.first_layer[2], 5);
}

TEST(PlanPartitionSearch, MatchesBruteForceForSmallModels) {
  int compared = 0, capped = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto problem = random_problem(random, 4, 4);
    if (!problem) continue;
    const schedule::Program program = problem->program();
    Score best{UINT64_MAX, 0};
    Boundaries boundaries{0};
    for_each_partition(static_cast<int>(problem->layers.size()), problem->shape.num_stages(), boundaries,
                       [&](const Boundaries& one) { best = std::min(best, score(*problem, program, one)); });
    const Plan plan = problem->plan();
    const Score found = score(*problem, program, plan.first_layer);
    EXPECT_EQ(found.first, best.first) << "seed " << seed << " " << to_string(plan.schedule);
    EXPECT_NEAR(found.second, best.second, 1e-9 * best.second)
        << "seed " << seed << " " << to_string(plan.schedule);
    EXPECT_EQ(plan.step_time, found.second) << "seed " << seed << " " << to_string(plan.schedule);
    ++compared;
    capped += problem->options.memory_cap && best.first > 0;
  }
  EXPECT_GT(compared, 180);
  EXPECT_GT(capped, 5) << "some models must not fit at all";
}

// The quick evaluation does not apply if sharding has any cost, whichever it is.
TEST(PlanPartitionSearch, MatchesBruteForceWithShardingCosts) {
  int compared = 0;
  for (unsigned seed = 0; seed < 120; ++seed) {
    std::mt19937 random(seed);
    auto problem = random_problem(random, 3, 3);
    if (!problem) continue;
    for (Layer& layer : problem->layers) {
      StageCosts& costs = layer.costs;
      costs.unshard = costs.reshard = costs.reduce_grad = 0;
      const auto some = random() % 40;
      if (seed % 4 == 0) costs.unshard = static_cast<double>(some);
      if (seed % 4 == 1) costs.reshard = static_cast<double>(some);
      if (seed % 4 == 2) costs.reduce_grad = static_cast<double>(some);
      if (seed % 4 == 3) costs.unsharded_bytes = some;
    }
    problem->options.send_mode = schedule::SendMode::Buffered;
    if (seed % 4 == 3) problem->options.memory_cap = 150 + random() % 200;
    const schedule::Program program = problem->program();
    Score best{UINT64_MAX, 0};
    Boundaries boundaries{0};
    for_each_partition(static_cast<int>(problem->layers.size()), problem->shape.num_stages(), boundaries,
                       [&](const Boundaries& one) { best = std::min(best, score(*problem, program, one)); });
    const Score found = score(*problem, program, problem->plan().first_layer);
    EXPECT_EQ(found.first, best.first) << "seed " << seed;
    EXPECT_NEAR(found.second, best.second, 1e-9 * best.second) << "seed " << seed;
    ++compared;
  }
  EXPECT_GT(compared, 60);
}

// A cap below every partition excludes none of them, and there are few enough to evaluate all.
TEST(PlanPartitionSearch, EvaluatesEveryPartitionOfSmallModel) {
  std::vector<Layer> layers;
  std::mt19937 random(1);
  for (int i = 0; i < 30; ++i) {
    layers.push_back(layer(1));
    layers.back().costs.activation_bytes = 1 + random() % 50;
  }
  const schedule::Program program =
      make_program(schedule::make_schedule("1F1B", {4, 1, 256}), schedule::SendMode::Buffered);
  // Stage s of 1F1B keeps 4 - s microbatches.
  std::uint64_t least = UINT64_MAX;
  const auto fullest = [&](const Boundaries& boundaries) {
    std::uint64_t most = 0;
    for (std::size_t s = 0; s < 4; ++s) {
      std::uint64_t bytes = 0;
      for (int i = boundaries[s]; i < boundaries[s + 1]; ++i)
        bytes += layers[static_cast<std::size_t>(i)].costs.activation_bytes;
      most = std::max(most, bytes * (4 - s));
    }
    return most;
  };
  Boundaries boundaries{0};
  for_each_partition(30, 4, boundaries,
                     [&](const Boundaries& one) { least = std::min(least, fullest(one)); });
  const PartitionResult found = search_partition(layers, program, {}, 10, {0, 1, 2, 3, 30});
  EXPECT_TRUE(found.exact);
  EXPECT_EQ(fullest(found.first_layer), least);
}

TEST(PlanPartitionSearch, LargeModelGetsGoodInexactPartition) {
  Problem problem;
  std::mt19937 random(1);
  for (int i = 0; i < 48; ++i) problem.layers.push_back(layer(1 + static_cast<double>(random() % 20)));
  problem.shape = {8, 1, 12};
  const schedule::Program program = problem.program();
  Boundaries even;
  for (int s = 0; s <= 8; ++s) even.push_back(6 * s);
  const PartitionResult found = search_partition(problem.layers, program, {}, std::nullopt, even);
  EXPECT_FALSE(found.exact);
  ASSERT_EQ(found.first_layer.size(), 9u);
  EXPECT_EQ(found.first_layer.front(), 0);
  EXPECT_EQ(found.first_layer.back(), 48);
  EXPECT_TRUE(std::is_sorted(found.first_layer.begin(), found.first_layer.end(), std::less_equal<>()));
  const double time = score(problem, program, found.first_layer).second;
  EXPECT_LE(time, local_search(problem, program, even).second);
  // A second search starts from the result of the first one and is never worse.
  const PartitionResult again =
      search_partition(problem.layers, program, {}, std::nullopt, found.first_layer);
  EXPECT_LE(score(problem, program, again.first_layer).second, time);
}

TEST(PlanPartitionSearch, IsNeverWorseThanLocalSearch) {
  expect_no_worse_than_local_search(1000, 1050);
}

TEST(PlanPartitionSearch, StopsAtItsBudgetForLargeModels) {
  Problem problem;
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) problem.layers.push_back(layer(1 + static_cast<double>(random() % 20)));
  problem.options = {.ranks = 16,
                     .microbatches = {64},
                     .stages_per_rank = {1, 4},
                     .schedules = {schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::Interleaved1F1B},
                     .recomputation = false};
  for (const Plan& plan : plan_layers(problem.layers, {}, problem.options).plans) {
    EXPECT_EQ(plan.first_layer.size(), static_cast<std::size_t>(16 * plan.stages_per_rank + 1));
    EXPECT_TRUE(std::is_sorted(plan.first_layer.begin(), plan.first_layer.end(), std::less_equal<>()));
  }
}

}  // namespace
}  // namespace penstock::plan
