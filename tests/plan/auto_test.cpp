// Auto schedules are valid, respect the memory cap and are never slower than the best named schedule; the
// quick evaluation matches the simulator.
#include "plan/auto/list_schedule.h"
#include "plan/auto/order.h"
#include "plan_profiles.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/plan/auto_schedule.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/validate.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace penstock::plan {
namespace {

TEST(PlanAuto, QuickEvaluationMatchesSimulator) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    Profile profile = random_profile(seed);
    for (StageCosts& stage : profile.costs.stages) {
      if (seed % 5 == 0) stage.recompute = true;
      if (seed % 7 == 0) stage.backward = stage.input + 0.5 * stage.weight;
    }
    const auto style =
        seed % 2 == 0 || profile.ranks == 1 ? schedule::PlacementStyle::Loop : schedule::PlacementStyle::V;
    const schedule::Placement placement =
        schedule::Placement::make(profile.ranks, profile.num_stages(), style);
    const auto_search::Problem problem(placement, profile.microbatches, profile.costs, std::nullopt);
    auto_search::Rule rule;
    rule.depth = 0.5 + 0.5 * (seed % 4);
    rule.split = seed % 3 != 0;
    rule.prefer = static_cast<auto_search::Preference>(seed % 3);
    const auto order = auto_search::list_schedule(problem, rule);
    ASSERT_TRUE(order) << "seed " << seed;
    auto_search::Evaluation evaluation;
    auto_search::evaluate(problem, *order, evaluation);
    const schedule::Schedule schedule{"list", placement, profile.microbatches, *order};
    const Simulation result = simulate(make_program(schedule, schedule::SendMode::Buffered), profile.costs);
    EXPECT_NEAR(evaluation.makespan, result.step_time, 1e-9 * result.step_time) << "seed " << seed;
  }
}

TEST(PlanAuto, IsValidFitsMemoryAndMatchesOrBeatsNamedSchedules) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Profile profile = random_profile(seed);
    const AutoOptions options{.memory_cap = profile.cap};
    // One microbatch at a time always fits these caps, so a schedule exists.
    const AutoResult result = make_auto_schedule(profile.ranks, profile.microbatches, profile.costs, options);
    EXPECT_TRUE(validate(result.schedule).valid()) << "seed " << seed;
    const Simulation simulation =
        simulate(make_program(result.schedule, schedule::SendMode::Buffered), profile.costs);
    EXPECT_EQ(simulation.step_time, result.step_time) << "seed " << seed;
    if (result.best_named) {
      EXPECT_LE(result.step_time, result.best_named->step_time) << "seed " << seed;
    }
    EXPECT_GE(result.step_time, result.lower_bound * (1 - 1e-9)) << "seed " << seed;
    EXPECT_LE(simulation.peak_memory(), profile.cap.value_or(UINT64_MAX)) << "seed " << seed;
  }
}

TEST(PlanAuto, ReachesLowerBoundAtEqualCosts) {
  // Without a cap, with equal costs and enough microbatches, ZBV's time is optimal; with one stage per rank,
  // ZB2P's is.
  for (int p = 1; p <= 6; ++p) {
    const AutoResult two = make_auto_schedule(p, 2 * p, Costs::uniform(2 * p));
    EXPECT_NEAR(two.step_time, 6.0 * 2 * p + p - 1, 1e-9) << p;
    const AutoResult one = make_auto_schedule(p, 2 * p, Costs::uniform(p));
    EXPECT_NEAR(one.step_time, 3.0 * 2 * p + p - 1, 1e-9) << p;
  }
}

TEST(PlanAuto, WorksWithMemoryForOneMicrobatchAndRejectsLess) {
  const AutoResult tight = make_auto_schedule(4, 6, Costs::uniform(8), {.memory_cap = 2});
  const Simulation simulation =
      simulate(make_program(tight.schedule, schedule::SendMode::Buffered), Costs::uniform(8));
  EXPECT_EQ(simulation.peak_memory(), 2u);
  EXPECT_EQ(
      test::error_message<ScheduleError>(
          [] { make_auto_schedule(4, 6, Costs::uniform(8), {.memory_cap = 1}); }),
      "no schedule fits into 1 B\nhint: raise the memory cap, use more ranks, or recompute activations");
}

TEST(PlanAuto, StartsFromFastestNamedScheduleThatFits) {
  int compared = 0, none = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const Profile profile = random_profile(seed);
    const schedule::SendMode mode = schedule::kSendModes[seed % schedule::kSendModes.size()];
    double least = std::numeric_limits<double>::infinity();
    for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
      if (!info.has_backward ||
          info.only_stages_per_rank.value_or(profile.stages_per_rank) != profile.stages_per_rank)
        continue;
      if (info.kind == schedule::ScheduleKind::DualPipeV && profile.microbatches < profile.num_stages())
        continue;
      const schedule::ScheduleShape shape{profile.ranks, profile.stages_per_rank, profile.microbatches};
      const Simulation result = simulate(make_program(make_schedule(info.kind, shape), mode), profile.costs);
      if (result.peak_memory() <= profile.cap.value_or(UINT64_MAX)) least = std::min(least, result.step_time);
    }
    const AutoResult result = make_auto_schedule(profile.ranks, profile.microbatches, profile.costs,
                                                 {.memory_cap = profile.cap, .send_mode = mode, .effort = 0});
    EXPECT_EQ(result.schedule.name, "Auto");
    EXPECT_EQ(result.best_named.has_value(), std::isfinite(least)) << "seed " << seed;
    if (!result.best_named) {
      ++none;
      continue;
    }
    EXPECT_EQ(result.best_named->step_time, least) << "seed " << seed;
    const schedule::Schedule named = schedule::make_schedule(
        result.best_named->name, {profile.ranks, profile.stages_per_rank, profile.microbatches});
    EXPECT_EQ(simulate(make_program(named, mode), profile.costs).step_time, least) << "seed " << seed;
    if (result.step_time == least) {  // only a faster order replaces the named schedule
      EXPECT_EQ(result.schedule.ranks, named.ranks) << "seed " << seed;
    }
    EXPECT_EQ(simulate(make_program(result.schedule, mode), profile.costs).step_time, result.step_time);
    ++compared;
  }
  EXPECT_GT(compared, 20);
  EXPECT_GT(none, 0);
}

TEST(PlanAuto, NamesFirstOfEquallyFastSchedules) {
  // On one rank, every schedule takes the same time.
  const AutoResult result = make_auto_schedule(1, 4, Costs::uniform(1));
  ASSERT_TRUE(result.best_named);
  EXPECT_EQ(result.best_named->name, schedule::schedule_infos().front().name);
  EXPECT_EQ(result.schedule.ranks, schedule::make_schedule(schedule::ScheduleKind::GPipe, {1, 1, 4}).ranks);
}

//! Without any improvement, the result is at least as fast as the order of every rule, on both placements.
void expect_no_slower_than_any_rule(const Profile& profile) {
  using auto_search::Preference;
  const AutoResult result = make_auto_schedule(profile.ranks, profile.microbatches, profile.costs,
                                               {.memory_cap = profile.cap, .effort = 0});
  for (const schedule::PlacementStyle style : {schedule::PlacementStyle::Loop, schedule::PlacementStyle::V}) {
    if (style == schedule::PlacementStyle::V && profile.stages_per_rank == 1) continue;
    const schedule::Placement placement =
        schedule::Placement::make(profile.ranks, profile.num_stages(), style);
    const auto_search::Problem problem(placement, profile.microbatches, profile.costs, profile.cap);
    std::vector<int> groups{1};
    if (profile.stages_per_rank > 1) groups = {1, profile.ranks, profile.microbatches};
    for (const Preference prefer : {Preference::Backward, Preference::Alternate, Preference::Forward}) {
      for (const double depth : {0.6, 0.8, 1.0, 1.25, 1.6, 2.2, 1e9}) {
        for (const int group : groups) {
          for (const double patience : {0.0, 0.5, 1.0, -1.0}) {  // -1: with full backward passes
            const auto order =
                list_schedule(problem, {prefer, depth, group, std::max(0.0, patience), patience >= 0});
            auto_search::Evaluation evaluation;
            if (order) evaluate(problem, *order, evaluation);
            EXPECT_LE(result.step_time, evaluation.makespan * (1 + 1e-9))
                << "depth " << depth << " group " << group << " patience " << patience;
          }
        }
      }
    }
  }
}

TEST(PlanAuto, IsNoSlowerThanAnyRule) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    Profile profile = random_profile(seed);
    expect_no_slower_than_any_rule(profile);
    // A merged backward pass is cheaper here, but sends its gradient later.
    for (StageCosts& stage : profile.costs.stages) stage.backward = stage.input + 0.7 * stage.weight;
    expect_no_slower_than_any_rule(profile);
  }
}

TEST(PlanAuto, TriesEveryRuleUpTo8000Actions) {
  Profile profile = random_profile(11);
  profile.microbatches = 222;
  ASSERT_EQ(3 * profile.num_stages() * profile.microbatches, 7992);
  expect_no_slower_than_any_rule(profile);
}

//! Every interleaving of two chains F, I, W on one rank: 20 of them.
std::vector<schedule::ActionList> interleavings(const schedule::ActionList& one,
                                                const schedule::ActionList& other) {
  std::vector<schedule::ActionList> all;
  std::vector<int> from(one.size() + other.size(), 1);
  std::fill(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(one.size()), 0);
  do {
    schedule::ActionList list;
    std::size_t next[2] = {0, 0};
    for (const int chain : from) list.push_back((chain == 0 ? one : other)[next[chain]++]);
    all.push_back(std::move(list));
  } while (std::next_permutation(from.begin(), from.end()));
  return all;
}

schedule::ActionList chain(int stage, int microbatch) {
  const StageId s(stage);
  const MicrobatchId m(microbatch);
  return {schedule::Action::forward(s, m), schedule::Action::backward_input(s, m),
          schedule::Action::backward_weight(s, m)};
}

//! The least time over all orders on two ranks: two microbatches with one stage per rank, or one with two
//! stages per rank.
double least_time(const schedule::Placement& placement, int microbatches, const Costs& costs) {
  const auto_search::Problem problem(placement, microbatches, costs, std::nullopt);
  std::vector<std::vector<schedule::ActionList>> lists;
  for (int r = 0; r < 2; ++r) {
    const std::vector<StageId> stages = placement.stages_of(Rank(r));
    const int first = stages.front().value, last = stages.back().value;
    lists.push_back(interleavings(chain(first, 0), chain(last, microbatches - 1)));
  }
  double least = std::numeric_limits<double>::infinity();
  auto_search::Evaluation evaluation;
  for (const schedule::ActionList& a : lists[0]) {
    for (const schedule::ActionList& b : lists[1]) {
      auto_search::evaluate(problem, {a, b}, evaluation);
      least = std::min(least, evaluation.makespan);
    }
  }
  return least;
}

TEST(PlanAuto, MatchesBruteForceOnTinyPipelines) {
  int faster = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int most) {
      return 1.0 + static_cast<double>(random() % static_cast<unsigned>(most));
    };
    const bool two_stages = seed % 2 == 1;
    Costs costs;
    for (int s = 0; s < (two_stages ? 4 : 2); ++s)
      costs.stages.push_back({.forward = pick(9), .input = pick(9), .weight = pick(9)});
    costs.link.latency = pick(4) - 1;
    const int microbatches = two_stages ? 1 : 2, stages = static_cast<int>(costs.stages.size());
    double least =
        least_time(schedule::Placement::make(2, stages, schedule::PlacementStyle::Loop), microbatches, costs);
    if (two_stages)
      least = std::min(least, least_time(schedule::Placement::make(2, 4, schedule::PlacementStyle::V),
                                         microbatches, costs));
    const AutoResult result = make_auto_schedule(2, microbatches, costs);
    EXPECT_NEAR(result.step_time, least, 1e-9) << "seed " << seed;
    EXPECT_LE(result.lower_bound, least + 1e-9) << "seed " << seed;
    faster += !result.best_named || result.step_time < result.best_named->step_time - 1e-9;
  }
  EXPECT_GE(faster, 3) << "the search must find what no named schedule has";
}

TEST(PlanAuto, UsesCheaperFullBackward) {
  // One rank and one microbatch: I and W take 6 together, a B takes 4.
  const Costs costs = Costs::uniform(1, {.forward = 2, .input = 3, .weight = 3, .backward = 4});
  EXPECT_EQ(make_auto_schedule(1, 1, costs).step_time, 6);
  EXPECT_EQ(make_auto_schedule(1, 5, costs).step_time, 30);
}

// An I and its W right after it become a B if a B is cheaper, unless the step is faster without; and only
// then.
TEST(PlanAuto, MergesAdjacentBackwardsIfCheaper) {
  int generated = 0, split = 0, merged = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    Profile profile = random_profile(seed);
    const bool cheaper = seed % 2 == 0;
    for (StageCosts& stage : profile.costs.stages)
      stage.backward = stage.input + stage.weight * (cheaper ? 0.9 : 1.1);
    const AutoResult result = make_auto_schedule(profile.ranks, profile.microbatches, profile.costs,
                                                 {.memory_cap = profile.cap, .effort = 0});
    if (result.best_named && result.step_time == result.best_named->step_time) continue;  // a named schedule
    ++generated;
    bool any_split = false, any_merged = false;
    schedule::Schedule all_merged = result.schedule;
    for (schedule::ActionList& list : all_merged.ranks) {
      for (std::size_t i = 0; i < list.size(); ++i) {
        any_split |= list[i].kind() == schedule::ActionKind::BackwardWeight;
        any_merged |= list[i].kind() == schedule::ActionKind::Backward;
        if (i == 0) continue;
        const schedule::Action before = list[i - 1];
        if (before != schedule::Action::backward_input(list[i].stage(), list[i].microbatch()) ||
            list[i].kind() != schedule::ActionKind::BackwardWeight)
          continue;
        list[i - 1] = schedule::Action::backward(before.stage(), before.microbatch());
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i--));
      }
    }
    EXPECT_LE(result.step_time,
              simulate(make_program(all_merged, schedule::SendMode::Buffered), profile.costs).step_time)
        << "seed " << seed;
    if (cheaper) split += any_split && any_merged;
    if (!cheaper) merged += any_merged;
  }
  EXPECT_GT(generated, 10);
  EXPECT_GT(split, 0) << "some schedule must have both";
  EXPECT_EQ(merged, 0);
}

std::string auto_error(int ranks, int microbatches, int stages) {
  return test::error_message<UsageError>(
      [&] { make_auto_schedule(ranks, microbatches, Costs::uniform(stages)); });
}

TEST(PlanAuto, RejectsStagesNotMultipleOfRanks) {
  const std::string hint = "\nhint: use a number of stages that is a multiple of the number of ranks";
  EXPECT_EQ(auto_error(4, 8, 6), "Auto cannot distribute 6 stages over 4 ranks" + hint);
  EXPECT_EQ(auto_error(4, 8, 3), "Auto cannot distribute 3 stages over 4 ranks" + hint);
  EXPECT_EQ(auto_error(4, 8, 0), "Auto cannot distribute 0 stages over 4 ranks" + hint);
  EXPECT_EQ(auto_error(0, 8, 4), "Auto needs at least one rank and one microbatch");
  EXPECT_EQ(auto_error(4, 0, 4), "Auto needs at least one rank and one microbatch");
  EXPECT_EQ(auto_error(1, 1, 1), "no error");
}

}  // namespace
}  // namespace penstock::plan
