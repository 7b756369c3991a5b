// Where the planner splits a model: against brute force over every cut, and against a local search.
#include "cut_problems.h"

namespace penstock {
namespace {

using namespace test;

TEST(CutSearch, LightLastStagesBeatTheLightestSlowestStage) {
  Problem problem;
  for (const double time : {8, 11, 2, 1, 18, 5, 4, 11}) problem.layers.push_back(layer(time));
  problem.options = {
      .ranks = 4, .microbatches = {8}, .stages_per_rank = {1}, .schedules = {"1F1B"}, .recomputation = false};
  // Of the least slowest stage, 20, is the cut 0 1 3 5 and takes 600; 0 3 5 6 and 0 3 5 7 take 573.
  const Plan plan = problem.plan();
  EXPECT_EQ(plan.step_time, 573);
  EXPECT_EQ(plan.first_layer[1], 3);
  EXPECT_EQ(plan.first_layer[2], 5);
}

TEST(CutSearch, EqualsBruteForceForSmallModels) {
  int compared = 0, capped = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto problem = random_problem(random, 4, 4);
    if (!problem) continue;
    const Program program = problem->program();
    Score best{UINT64_MAX, 0};
    Cut cut{0};
    for_each_cut(static_cast<int>(problem->layers.size()), problem->shape.stages(), cut,
                 [&](const Cut& one) { best = std::min(best, score(*problem, program, one)); });
    const Plan plan = problem->plan();
    const Score found = score(*problem, program, plan.first_layer);
    EXPECT_EQ(found.first, best.first) << "seed " << seed << " " << plan.schedule;
    EXPECT_NEAR(found.second, best.second, 1e-9 * best.second) << "seed " << seed << " " << plan.schedule;
    EXPECT_EQ(plan.step_time, found.second) << "seed " << seed << " " << plan.schedule;
    ++compared;
    capped += problem->options.memory_cap && best.first > 0;
  }
  EXPECT_GT(compared, 180);
  EXPECT_GT(capped, 5) << "some models must not fit at all";
}

TEST(CutSearch, IsNeverWorseThanALocalSearch) {
  expect_no_worse_than_local_search(1000, 1050);
}

TEST(CutSearch, StopsAtItsBudgetForLargeModels) {
  Problem problem;
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) problem.layers.push_back(layer(1 + static_cast<double>(random() % 20)));
  problem.options = {.ranks = 16,
                     .microbatches = {64},
                     .stages_per_rank = {1, 4},
                     .schedules = {"1F1B", "Interleaved1F1B"},
                     .recomputation = false};
  for (const Plan& plan : plan_layers(problem.layers, {}, problem.options).plans) {
    EXPECT_EQ(plan.first_layer.size(), static_cast<std::size_t>(16 * plan.stages_per_rank + 1));
    EXPECT_TRUE(std::is_sorted(plan.first_layer.begin(), plan.first_layer.end(), std::less_equal<>()));
  }
}

}  // namespace
}  // namespace penstock
