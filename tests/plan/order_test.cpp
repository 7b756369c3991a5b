// Orders of computations in Auto's search: how they are evaluated and improved, and their memory.
#include "plan/auto/order.h"

#include "plan/auto/improve.h"
#include "plan/auto/list_schedule.h"
#include "plan_profiles.h"

#include <gtest/gtest.h>

#include <cmath>

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
