// Orders of computations in Auto's search: how they are evaluated and improved, and their memory.
#include "plan/auto/order.h"

#include "plan/auto/improve.h"
#include "plan/auto/list_schedule.h"
#include "plan_profiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace penstock::plan::auto_search {
namespace {

const MicrobatchId kBatch0(0), kBatch1(1);
const StageId kStage0(0), kStage1(1);

TEST(PlanEvaluate, DeadlockedOrderTakesInfiniteTime) {
  const schedule::Placement one = schedule::Placement::make(1, 1, schedule::PlacementStyle::Loop),
                            two = schedule::Placement::make(2, 2, schedule::PlacementStyle::Loop);
  const Costs costs = Costs::uniform(2), single = Costs::uniform(1);
  const auto time = [](const Problem& problem, const Order& order) {
    Evaluation evaluation;
    evaluate(problem, order, evaluation);
    return evaluation.makespan;
  };
  const Problem alone(one, 1, single, std::nullopt);
  EXPECT_EQ(time(alone, {{schedule::Action::forward(kStage0, kBatch0),
                          schedule::Action::backward(kStage0, kBatch0)}}),
            3);
  EXPECT_TRUE(std::isinf(time(
      alone, {{schedule::Action::backward(kStage0, kBatch0), schedule::Action::forward(kStage0, kBatch0)}})));
  EXPECT_TRUE(std::isinf(time(alone, {{schedule::Action::forward(kStage0, kBatch0),
                                       schedule::Action::backward_weight(kStage0, kBatch0),
                                       schedule::Action::backward_input(kStage0, kBatch0)}})));
  // Each rank waits for the next action of the other.
  const Problem pair(two, 2, costs, std::nullopt);
  const schedule::ActionList first{
      schedule::Action::forward(kStage0, kBatch0), schedule::Action::backward(kStage0, kBatch0),
      schedule::Action::forward(kStage0, kBatch1), schedule::Action::backward(kStage0, kBatch1)};
  const schedule::ActionList second{
      schedule::Action::forward(kStage1, kBatch0), schedule::Action::forward(kStage1, kBatch1),
      schedule::Action::backward(kStage1, kBatch0), schedule::Action::backward(kStage1, kBatch1)};
  EXPECT_TRUE(std::isinf(time(pair, {first, second})));
  // A stage that receives no input.
  EXPECT_TRUE(std::isinf(time(pair, {{}, second})));
}

TEST(PlanEvaluate, ReportsStartAndBlockerOfEachAction) {
  const schedule::Placement two = schedule::Placement::make(2, 2, schedule::PlacementStyle::Loop);
  Costs costs = Costs::uniform(2);
  costs.link.latency = 0.5;
  const Problem problem(two, 1, costs, std::nullopt);
  Evaluation evaluation;
  evaluate(problem,
           {{schedule::Action::forward(kStage0, kBatch0), schedule::Action::backward_input(kStage0, kBatch0),
             schedule::Action::backward_weight(kStage0, kBatch0)},
            {schedule::Action::forward(kStage1, kBatch0), schedule::Action::backward(kStage1, kBatch0)}},
           evaluation);
  EXPECT_EQ(evaluation.start, (std::vector<double>{0, 5, 6, 1.5, 2.5}));
  EXPECT_EQ(evaluation.end, (std::vector<double>{1, 6, 7, 2.5, 4.5}));
  EXPECT_EQ(evaluation.bound_by, (std::vector<std::int32_t>{-1, 4, 1, 0, 3}));
  EXPECT_EQ(evaluation.makespan, 7);
}

TEST(PlanEvaluate, ActionThatStartsAtOnceHasNoBlocker) {
  // A forward pass and a transfer without duration: both ranks start at 0.
  const schedule::Placement two = schedule::Placement::make(2, 2, schedule::PlacementStyle::Loop);
  Costs costs = Costs::uniform(2);
  costs.stages[0].forward = 0;
  const Problem problem(two, 1, costs, std::nullopt);
  Evaluation evaluation;
  evaluate(problem,
           {{schedule::Action::forward(kStage0, kBatch0), schedule::Action::backward(kStage0, kBatch0)},
            {schedule::Action::forward(kStage1, kBatch0), schedule::Action::backward(kStage1, kBatch0)}},
           evaluation);
  EXPECT_EQ(evaluation.start, (std::vector<double>{0, 3, 0, 1}));
  EXPECT_EQ(evaluation.bound_by, (std::vector<std::int32_t>{-1, 3, -1, 2}));
}

TEST(PlanEvaluate, OnlyComputationsTakeTimeAndMemory) {
  const schedule::Placement two = schedule::Placement::make(2, 2, schedule::PlacementStyle::Loop);
  const Costs costs = with_recomputation(
      Costs::uniform(2, {.unshard = 3, .activation_bytes = 5, .input_bytes = 7, .unsharded_bytes = 11}));
  const Problem problem(two, 1, costs, std::nullopt);
  for (const schedule::Action& action :
       {schedule::Action::unshard(kStage0), schedule::Action::send_forward(kStage0, kBatch0, kStage1)}) {
    EXPECT_EQ(problem.duration(action), 0);
    EXPECT_EQ(problem.takes(action), 0);
    EXPECT_EQ(problem.gives(action), 0);
  }
}

TEST(PlanMemory, PeaksFollowFromOrder) {
  const schedule::Placement one = schedule::Placement::make(1, 1, schedule::PlacementStyle::Loop);
  Costs costs = Costs::uniform(
      1, {.activation_bytes = 100, .weight_bytes = 10, .input_bytes = 1, .parameter_bytes = 1000});
  const schedule::Action f0 = schedule::Action::forward(kStage0, kBatch0),
                         f1 = schedule::Action::forward(kStage0, kBatch1);
  const schedule::Action i0 = schedule::Action::backward_input(kStage0, kBatch0),
                         w0 = schedule::Action::backward_weight(kStage0, kBatch0);
  const schedule::Action b0 = schedule::Action::backward(kStage0, kBatch0);
  const Problem problem(one, 2, costs, 1220);
  EXPECT_EQ(peak_activations(problem, {f0, f1}), 220);
  EXPECT_EQ(peak_activations(problem, {f0, i0, f1}), 120);
  EXPECT_EQ(peak_activations(problem, {f0, i0, w0, f1}), 110);
  EXPECT_EQ(peak_activations(problem, {f0, b0, f1}), 110);
  EXPECT_TRUE(fits(problem, {f0, f1}, 0));
  EXPECT_FALSE(fits(Problem(one, 2, costs, 1219), {f0, f1}, 0));
  // Actions without memory fit in none.
  const Costs free = Costs::uniform(1, {.activation_bytes = 0});
  const Problem empty(one, 2, free, 0);
  EXPECT_EQ(peak_activations(empty, {f0, f1, b0}), 0);
  EXPECT_TRUE(fits(empty, {f0, f1, b0}, 0));
  // With recomputation, a microbatch keeps its input, and a backward needs the full activations again.
  const Costs again = with_recomputation(costs);
  const Problem recomputing(one, 2, again, std::nullopt);
  EXPECT_EQ(peak_activations(recomputing, {f0, f1}), 111);
  EXPECT_EQ(peak_activations(recomputing, {f0, f1, b0}), 112);
  EXPECT_EQ(peak_activations(recomputing, {f0, i0, w0, f1}), 111);
}

//! The list of a rank with one stage, as `F0 I0 …`.
std::string text_of(const schedule::ActionList& list) {
  std::string text;
  for (const schedule::Action& action : list)
    text += (text.empty() ? "" : " ") + to_string(action).substr(std::to_string(action.stage().value).size());
  return text;
}

TEST(PlanListSchedule, FollowsItsRule) {
  // Two ranks, three microbatches, F = I = W = 1. A round trip of a microbatch takes 4 from rank 0 and 2 from
  // rank 1, and a rank works 3 on each microbatch: at depth 1, rank 0 admits 2 microbatches and rank 1 admits
  // one.
  const schedule::Placement two = schedule::Placement::make(2, 2, schedule::PlacementStyle::Loop);
  const Costs costs = Costs::uniform(2);
  const Problem problem(two, 3, costs, std::nullopt);
  const auto lists = [&](const Rule& rule) {
    const std::optional<Order> order = list_schedule(problem, rule);
    return order ? text_of((*order)[0]) + " | " + text_of((*order)[1]) : "none";
  };
  EXPECT_EQ(lists({Preference::Backward, 1, 1, 0, true}),
            "F0 F1 I0 F2 I1 W0 I2 W1 W2 | F0 I0 F1 I1 F2 I2 W0 W1 W2");
  EXPECT_EQ(lists({Preference::Forward, 1e9, 1, 0, true}),
            "F0 F1 F2 I0 I1 I2 W0 W1 W2 | F0 F1 F2 I0 I1 I2 W0 W1 W2");
  EXPECT_EQ(lists({Preference::Backward, 1, 1, 0, false}), "F0 F1 B0 F2 B1 B2 | F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(lists({Preference::Forward, 1e9, 1, 0, false}), "F0 F1 F2 B0 B1 B2 | F0 F1 F2 B0 B1 B2");
  // Half the depth: one microbatch at a time.
  EXPECT_EQ(lists({Preference::Backward, 0.5, 1, 0, false}), "F0 B0 F1 B1 F2 B2 | F0 B0 F1 B1 F2 B2");
}

//! The lists of all ranks, as `0F0 0I0 … | 1F0 …`.
std::string scheduled(const schedule::Placement& placement, int microbatches, const Costs& costs,
                      const Rule& rule, std::optional<std::uint64_t> cap = std::nullopt) {
  const std::optional<Order> order = list_schedule(Problem(placement, microbatches, costs, cap), rule);
  if (!order) return "none";
  std::string text;
  for (const schedule::ActionList& list : *order) {
    if (!text.empty()) text += " |";
    for (const schedule::Action& action : list) text += (text.empty() ? "" : " ") + to_string(action);
  }
  return text;
}

const schedule::Placement kTwo = schedule::Placement::make(2, 2, schedule::PlacementStyle::Loop);
const schedule::Placement kLooped = schedule::Placement::make(2, 4, schedule::PlacementStyle::Loop);
const schedule::Placement kFolded = schedule::Placement::make(2, 4, schedule::PlacementStyle::V);

TEST(PlanListSchedule, AlternatesIfBothAreReady) {
  const Costs costs = Costs::uniform(2);
  EXPECT_EQ(
      scheduled(kTwo, 4, costs, {Preference::Alternate, 1e9, 1, 0, true}),
      "0F0 0F1 0F2 0I0 0F3 0I1 0W0 0I2 0W1 0I3 0W2 0W3 | 1F0 1I0 1F1 1I1 1F2 1I2 1F3 1I3 1W0 1W1 1W2 1W3");
  EXPECT_EQ(scheduled(kTwo, 4, costs, {Preference::Alternate, 1e9, 1, 0, false}),
            "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3 | 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3");
}

TEST(PlanListSchedule, WeightBackwardWaitsForMoreUrgentAction) {
  // Rank 1 is free at 5, and the input of 1F1 arrives at 6: 1W0, which takes 3, waits for it if the patience
  // is above a third.
  Costs costs = Costs::uniform(2);
  costs.stages[0].forward = 3;
  costs.stages[1].weight = 3;
  const auto rank1 = [&](double patience) {
    const std::string text = scheduled(kTwo, 3, costs, {Preference::Backward, 1e9, 1, patience, true});
    return text.substr(text.find("1F0"));
  };
  EXPECT_EQ(rank1(0), "1F0 1I0 1W0 1F1 1I1 1F2 1I2 1W1 1W2");
  EXPECT_EQ(rank1(1.0 / 3), "1F0 1I0 1W0 1F1 1I1 1F2 1I2 1W1 1W2");
  EXPECT_EQ(rank1(0.5), "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2");
  EXPECT_EQ(rank1(1), "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2");
}

TEST(PlanListSchedule, DepthCountsTransfersOfRoundTrip) {
  // A round trip takes 6 plus two latencies, and a rank works 3 on each microbatch.
  const auto rank0 = [&](double latency) {
    Costs costs = Costs::uniform(2);
    costs.link.latency = latency;
    const std::string text = scheduled(kTwo, 6, costs, {Preference::Backward, 1, 1, 0, false});
    return text.substr(0, text.find(" |"));
  };
  EXPECT_EQ(rank0(0), "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0F4 0B3 0F5 0B4 0B5");
  EXPECT_EQ(rank0(0.5), "0F0 0F1 0F2 0B0 0F3 0B1 0F4 0B2 0F5 0B3 0B4 0B5");
  EXPECT_EQ(rank0(1.5), "0F0 0F1 0F2 0B0 0F3 0B1 0F4 0B2 0F5 0B3 0B4 0B5");
  EXPECT_EQ(rank0(2), "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0B3 0B4 0B5");
}

TEST(PlanListSchedule, AdmitsAllMicrobatchesIfOnlyTransfersTakeTime) {
  // No number of microbatches covers the round trip.
  Costs costs = Costs::uniform(2, {.forward = 0, .input = 0, .weight = 0});
  costs.link.latency = 1;
  EXPECT_EQ(scheduled(kTwo, 3, costs, {Preference::Backward, 0.5, 1, 0, false}),
            "0F0 0F1 0F2 0B0 0B1 0B2 | 1F0 1B0 1F1 1B1 1F2 1B2");
  costs.link.latency = 0;
  EXPECT_NE(scheduled(kTwo, 3, costs, {Preference::Backward, 0.5, 1, 0, false}), "none");
  // One microbatch is always admitted, even if its round trip takes no time.
  costs.stages[0].weight = costs.stages[1].weight = 1;
  EXPECT_NE(scheduled(kTwo, 3, costs, {Preference::Backward, 0.5, 1, 0, true}), "none");
}

TEST(PlanListSchedule, StageProcessesGroupBeforeNextStage) {
  const Costs costs = Costs::uniform(4);
  const auto eager = [&](int group) {
    const std::string text = scheduled(kLooped, 4, costs, {Preference::Forward, 1e9, group, 0, false});
    return text.substr(0, text.find(" |"));
  };
  EXPECT_EQ(eager(2), "0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3 2B0 2B1 0B0 0B1 2B2 2B3 0B2 0B3");
  EXPECT_EQ(eager(4), "0F0 0F1 0F2 0F3 2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3 0B0 0B1 0B2 0B3");
  // At depth 1.25, rank 0 admits 5 microbatches: only the group decides.
  EXPECT_EQ(scheduled(kLooped, 4, costs, {Preference::Backward, 1.25, 1, 0, false}),
            "0F0 0F1 2F0 2F1 0F2 2B0 2B1 0B0 0B1 2F2 0F3 2B2 2F3 0B2 2B3 0B3 | "
            "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1 1F2 3F2 3B2 1F3 1B2 3F3 3B3 1B3");
  EXPECT_EQ(scheduled(kLooped, 4, costs, {Preference::Backward, 1.25, 3, 0, false}),
            "0F0 0F1 0F2 2F0 2F1 2B0 2B1 0B0 0B1 2F2 0F3 2B2 2F3 0B2 2B3 0B3 | "
            "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1 1F2 3F2 3B2 1F3 1B2 3F3 3B3 1B3");
  EXPECT_EQ(scheduled(kFolded, 3, costs, {Preference::Backward, 1, 1, 0, true}),
            "0F0 0F1 3F0 3I0 3W0 0I0 0F2 3F1 3I1 0W0 3W1 0I1 0W1 3F2 3I2 3W2 0I2 0W2 | "
            "1F0 2F0 2I0 1I0 1F1 2F1 1W0 2W0 2I1 1I1 1F2 2F2 1W1 2W1 2I2 1I2 1W2 2W2");
}

TEST(PlanListSchedule, KeepsRoomForLaterStagesOfOldestMicrobatch) {
  // Two stages per rank, one byte per stage and microbatch.
  const Costs costs = Costs::uniform(4);
  const Rule rule{Preference::Forward, 1e9, 2, 0, false};
  EXPECT_EQ(scheduled(kLooped, 3, costs, rule, 1), "none");
  EXPECT_EQ(
      scheduled(kLooped, 3, costs, rule, 3),
      "0F0 0F1 2F0 2B0 2F1 0B0 0F2 2B1 2F2 0B1 2B2 0B2 | 1F0 1F1 3F0 3B0 1B0 3F1 3B1 1F2 1B1 3F2 3B2 1B2");
  EXPECT_EQ(
      scheduled(kLooped, 3, costs, rule, 4),
      "0F0 0F1 2F0 2F1 2B0 0F2 2B1 2F2 0B0 0B1 2B2 0B2 | 1F0 1F1 3F0 3F1 3B0 3B1 1B0 1F2 1B1 3F2 3B2 1B2");
  // With recomputation, a microbatch keeps 1 of 4 bytes per stage, and one stage has all 4.
  const Costs again =
      with_recomputation(Costs::uniform(4, {.activation_bytes = 3, .weight_bytes = 1, .input_bytes = 1}));
  const auto rank0 = [&](std::uint64_t cap) {
    const std::string text = scheduled(kLooped, 3, again, {Preference::Forward, 1e9, 2, 0, true}, cap);
    return text.substr(0, text.find(" |"));
  };
  EXPECT_EQ(rank0(5), "none");
  EXPECT_EQ(rank0(6), "0F0 2F0 2I0 2W0 0F1 0I0 0W0 2F1 2I1 2W1 0F2 0I1 0W1 2F2 2I2 2W2 0I2 0W2");
  EXPECT_EQ(rank0(7), "0F0 0F1 2F0 2I0 2W0 2F1 0I0 0W0 0F2 2I1 2W1 2F2 0I1 0W1 2I2 2W2 0I2 0W2");
  EXPECT_EQ(rank0(8), "0F0 0F1 2F0 2F1 2I0 2I1 0I0 0I1 0W0 0F2 0W1 2F2 2W0 2W1 2I2 2W2 0I2 0W2");
  EXPECT_EQ(rank0(9), "0F0 0F1 2F0 2F1 0F2 2I0 2I1 0I0 0I1 0W0 2F2 0W1 2W0 2W1 2I2 2W2 0I2 0W2");
  EXPECT_EQ(rank0(10), "0F0 0F1 2F0 2F1 0F2 2F2 2I0 2W0 2I1 0I0 0I1 2I2 0W0 0W1 0I2 0W2 2W1 2W2");
}

TEST(PlanListSchedule, AdmitsOnlyMicrobatchesThatFit) {
  const schedule::Placement two = schedule::Placement::make(2, 2, schedule::PlacementStyle::Loop);
  const Costs costs = Costs::uniform(2, {.activation_bytes = 10, .weight_bytes = 2, .parameter_bytes = 5});
  const Rule eager{Preference::Forward, 1e9, 1, 0, true};
  // 5 bytes are resident; a microbatch needs 12, of which 2 remain until its W.
  for (const auto& [cap, peak] : {std::pair{17, 12}, {29, 24}, {41, 36}, {53, 48}, {1000, 48}}) {
    const Problem problem(two, 4, costs, static_cast<std::uint64_t>(cap));
    const std::optional<Order> order = list_schedule(problem, eager);
    ASSERT_TRUE(order) << cap;
    EXPECT_EQ(peak_activations(problem, (*order)[0]), peak) << cap;
  }
  EXPECT_FALSE(list_schedule(Problem(two, 4, costs, 16), eager));
  // With recomputation, a microbatch keeps 3, and a backward needs the 12 again.
  Costs again = with_recomputation(costs);
  for (StageCosts& stage : again.stages) stage.input_bytes = 3;
  for (const auto& [cap, peak] : {std::pair{20, 15}, {23, 18}, {29, 24}, {1000, 24}}) {
    const Problem problem(two, 4, again, static_cast<std::uint64_t>(cap));
    const std::optional<Order> order = list_schedule(problem, eager);
    ASSERT_TRUE(order) << cap;
    EXPECT_EQ(peak_activations(problem, (*order)[0]), peak) << cap;
  }
  EXPECT_FALSE(list_schedule(Problem(two, 4, again, 19), eager));
}

TEST(PlanImprove, NeverKeepsWorseOrder) {
  int shorter = 0, tried = 0;
  for (unsigned seed = 0; seed < 80; ++seed) {
    const Profile profile = random_profile(seed);
    const schedule::Placement placement =
        schedule::Placement::make(profile.ranks, profile.num_stages(), schedule::PlacementStyle::Loop);
    const Problem problem(placement, profile.microbatches, profile.costs, profile.cap);
    Rule rule;
    rule.prefer = static_cast<Preference>(seed % 3);
    rule.depth = 0.6 + 0.4 * (seed % 4);
    const std::optional<Order> start = list_schedule(problem, rule);
    if (!start) continue;
    Evaluation evaluation;
    evaluate(problem, *start, evaluation);
    const double before = evaluation.makespan;
    for (const int budget : {0, 1, 5, 300}) {
      Order order = *start;
      const double claimed = improve(problem, order, budget);
      evaluate(problem, order, evaluation);
      EXPECT_EQ(claimed, evaluation.makespan) << "seed " << seed << " budget " << budget;
      EXPECT_LE(claimed, before) << "seed " << seed << " budget " << budget;
      EXPECT_TRUE(budget > 0 || order == *start);
      for (int r = 0; r < problem.ranks; ++r)
        EXPECT_TRUE(fits(problem, order[static_cast<std::size_t>(r)], r)) << "seed " << seed;
      shorter += budget == 300 && claimed < before * (1 - 1e-9);
    }
    ++tried;
  }
  EXPECT_GT(tried, 50);
  EXPECT_GT(shorter, tried / 4);
}

//! Every order of two microbatches on one rank with one stage that keeps F, I and W of each in order.
std::vector<schedule::ActionList> orders_of(StageId stage) {
  std::vector<schedule::ActionList> all;
  std::vector<int> from{0, 0, 0, 1, 1, 1};
  do {
    schedule::ActionList list;
    int next[2] = {0, 0};
    for (const int m : from) {
      const MicrobatchId batch(m);
      const int pass = next[m]++;
      list.push_back(pass == 0   ? schedule::Action::forward(stage, batch)
                     : pass == 1 ? schedule::Action::backward_input(stage, batch)
                                 : schedule::Action::backward_weight(stage, batch));
    }
    all.push_back(std::move(list));
  } while (std::next_permutation(from.begin(), from.end()));
  return all;
}

TEST(PlanImprove, ReachesOptimumFromMostOrders) {
  int starts = 0, optimal = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](unsigned most) { return 1.0 + static_cast<double>(random() % most); };
    Costs costs;
    for (int s = 0; s < 2; ++s)
      costs.stages.push_back({.forward = pick(9), .input = pick(9), .weight = pick(9)});
    costs.link.latency = pick(4) - 1;
    const Problem problem(kTwo, 2, costs, std::nullopt);
    std::vector<Order> orders;
    double least = std::numeric_limits<double>::infinity();
    Evaluation evaluation;
    for (const schedule::ActionList& first : orders_of(kStage0)) {
      for (const schedule::ActionList& second : orders_of(kStage1)) {
        evaluate(problem, {first, second}, evaluation);
        if (std::isinf(evaluation.makespan)) continue;  // a deadlock
        least = std::min(least, evaluation.makespan);
        orders.push_back({first, second});
      }
    }
    for (Order& order : orders) {
      ++starts;
      optimal += improve(problem, order, 400) <= least * (1 + 1e-9);
    }
  }
  EXPECT_GT(optimal, starts * 8 / 10);
}

// One neighbor moves one action of one rank.
TEST(PlanImprove, TriesNoMoreNeighborsThanBudget) {
  const Costs costs = Costs::uniform(2);
  const Problem problem(kTwo, 4, costs, std::nullopt);
  const Order start = *list_schedule(problem, {Preference::Forward, 1e9, 1, 0, true});
  int changed = 0;
  for (int budget = 0; budget <= 3; ++budget) {
    Order order = start;
    improve(problem, order, budget);
    int ranks = 0;
    for (std::size_t r = 0; r < order.size(); ++r) ranks += order[r] != start[r];
    EXPECT_LE(ranks, budget);
    changed += ranks;
  }
  EXPECT_LE(changed, 6);
}

TEST(PlanImprove, DelaysBlockingWeightBackward) {
  // Rank 1 computes W0 before it sends the gradient of microbatch 1; with W0 after it, the step is shorter.
  const schedule::Placement two = schedule::Placement::make(2, 2, schedule::PlacementStyle::Loop);
  const Costs costs = Costs::uniform(2);
  const Problem problem(two, 2, costs, std::nullopt);
  Order order{
      {schedule::Action::forward(kStage0, kBatch0), schedule::Action::forward(kStage0, kBatch1),
       schedule::Action::backward_input(kStage0, kBatch0), schedule::Action::backward_input(kStage0, kBatch1),
       schedule::Action::backward_weight(kStage0, kBatch0),
       schedule::Action::backward_weight(kStage0, kBatch1)},
      {schedule::Action::forward(kStage1, kBatch0), schedule::Action::backward_input(kStage1, kBatch0),
       schedule::Action::backward_weight(kStage1, kBatch0), schedule::Action::forward(kStage1, kBatch1),
       schedule::Action::backward_input(kStage1, kBatch1),
       schedule::Action::backward_weight(kStage1, kBatch1)}};
  Evaluation evaluation;
  evaluate(problem, order, evaluation);
  EXPECT_EQ(evaluation.makespan, 9);
  EXPECT_EQ(improve(problem, order, 200), 7);  // a chain of 5 before the last two computations of stage 0
}

}  // namespace
}  // namespace penstock::plan::auto_search
