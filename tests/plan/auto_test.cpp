// Auto: valid, under the cap, never slower than the best named schedule, and its quick evaluation equals the
// simulator.
#include "plan/auto/list_schedule.h"
#include "plan/auto/order.h"
#include "plan_profiles.h"

#include <penstock/base/error.h>
#include <penstock/plan/auto_schedule.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/validate.h>

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Auto, TheQuickEvaluationEqualsTheSimulator) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Profile profile = random_profile(seed);
    const auto style = seed % 2 == 0 || profile.ranks == 1 ? PlacementStyle::Loop : PlacementStyle::V;
    const Placement placement = Placement::make(profile.ranks, profile.stages(), style);
    const auto_search::Problem problem(placement, profile.microbatches, profile.costs, std::nullopt);
    auto_search::Rule rule;
    rule.depth = 0.5 + 0.5 * (seed % 4);
    rule.split = seed % 3 != 0;
    rule.prefer = static_cast<auto_search::Preference>(seed % 3);
    const auto order = auto_search::list_schedule(problem, rule);
    ASSERT_TRUE(order) << "seed " << seed;
    auto_search::Evaluation evaluation;
    auto_search::evaluate(problem, *order, evaluation);
    const Schedule schedule{"list", placement, profile.microbatches, *order};
    const Simulation result = simulate(make_program(schedule, SendMode::Buffered), profile.costs);
    EXPECT_NEAR(evaluation.makespan, result.step_time, 1e-9 * result.step_time) << "seed " << seed;
  }
}

TEST(Auto, IsValidFitsAndIsNeverSlowerThanTheBestNamedSchedule) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Profile profile = random_profile(seed);
    const AutoOptions options{.memory_cap = profile.cap};
    AutoResult result;
    try {
      result = make_auto_schedule(profile.ranks, profile.microbatches, profile.costs, options);
    } catch (const ScheduleError&) {
      continue;  // nothing fits at all
    }
    EXPECT_TRUE(validate(result.schedule).valid()) << "seed " << seed;
    const Simulation simulation = simulate(make_program(result.schedule, SendMode::Buffered), profile.costs);
    EXPECT_EQ(simulation.step_time, result.step_time) << "seed " << seed;
    EXPECT_LE(result.step_time, result.best_named_time) << "seed " << seed;
    EXPECT_GE(result.step_time, result.lower_bound * (1 - 1e-9)) << "seed " << seed;
    EXPECT_LE(simulation.peak_memory(), profile.cap.value_or(UINT64_MAX)) << "seed " << seed;
  }
}

TEST(Auto, ReachesTheBoundAtEqualCosts) {
  // Without a cap, equal costs and enough microbatches, ZBV's time is the least there is; one stage a rank:
  // ZB2P's.
  for (int p = 1; p <= 6; ++p) {
    const AutoResult two = make_auto_schedule(p, 2 * p, Costs::uniform(2 * p));
    EXPECT_NEAR(two.step_time, 6.0 * 2 * p + p - 1, 1e-9) << p;
    const AutoResult one = make_auto_schedule(p, 2 * p, Costs::uniform(p));
    EXPECT_NEAR(one.step_time, 3.0 * 2 * p + p - 1, 1e-9) << p;
  }
}

TEST(Auto, WorksUnderACapThatHoldsOneMicrobatchAndRefusesLess) {
  const AutoResult tight = make_auto_schedule(4, 6, Costs::uniform(8), {.memory_cap = 2});
  const Simulation simulation = simulate(make_program(tight.schedule, SendMode::Buffered), Costs::uniform(8));
  EXPECT_EQ(simulation.peak_memory(), 2u);
  EXPECT_THROW(make_auto_schedule(4, 6, Costs::uniform(8), {.memory_cap = 1}), ScheduleError);
}

TEST(Auto, RefusesStagesThatAreNoMultipleOfTheRanks) {
  EXPECT_THROW(make_auto_schedule(4, 8, Costs::uniform(6)), UsageError);
}

}  // namespace
}  // namespace penstock
