// Bubbles of timelines and the lower bound, compared with values computed by hand.
#include <penstock/plan/simulate.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <gtest/gtest.h>

namespace penstock::plan {
namespace {

TEST(PlanReport, ComputesBubblesOfTinyPipeline) {
  // 1F1B, F = 1, B = 2.     0   1   2   3   4   5   6   7   8   9
  //                 rank 0: F0  F1  .   .   B0--    .   B1--
  //                 rank 1: .   F0  B0--    F1  B1--
  const schedule::Program program =
      make_program(schedule::make_schedule("1F1B", {2, 1, 2}), schedule::SendMode::Buffered);
  const Simulation result = simulate(program, Costs::uniform(2));
  ASSERT_EQ(result.ranks.size(), 2u);
  const RankReport &first = result.ranks[0], &second = result.ranks[1];
  EXPECT_EQ(result.step_time, 9);
  EXPECT_EQ(first.busy, 6);
  EXPECT_EQ(first.first, 0);
  EXPECT_EQ(first.last, 9);
  EXPECT_DOUBLE_EQ(first.bubble, 3.0 / 9);
  EXPECT_DOUBLE_EQ(first.own_bubble, 3.0 / 9);
  EXPECT_EQ(second.busy, 6);
  EXPECT_EQ(second.first, 1);
  EXPECT_EQ(second.last, 7);
  EXPECT_DOUBLE_EQ(second.bubble, 3.0 / 9);
  EXPECT_DOUBLE_EQ(second.own_bubble, 0);
  EXPECT_DOUBLE_EQ(result.bubble, 3.0 / 9);
  EXPECT_DOUBLE_EQ(result.own_bubble, 1.5 / 9);
}

TEST(PlanReport, MeasuredTimelineCountsOnlyComputationsAndMemory) {
  const StageId stage(0);
  schedule::Timeline timeline;
  timeline.placement = schedule::Placement::make(2, 2, schedule::PlacementStyle::Loop);
  timeline.microbatches = 1;
  timeline.ranks = {{{schedule::Action::unshard(stage), 0, 1},
                     {schedule::Action::forward(stage, MicrobatchId(0)), 2, 5},
                     {schedule::Action::backward(stage, MicrobatchId(0)), 6, 10},
                     {schedule::Action::reduce_grad(stage), 10, 20}},
                    {}};
  timeline.memory = {{{0, 5}, {2, 9}, {3, 9}, {6, 4}}, {}};
  const std::vector<RankReport> reports = report_ranks(timeline);
  EXPECT_EQ(reports[0].busy, 7);
  EXPECT_EQ(reports[0].first, 2);
  EXPECT_EQ(reports[0].last, 10);
  EXPECT_DOUBLE_EQ(reports[0].bubble, 13.0 / 20);
  EXPECT_DOUBLE_EQ(reports[0].own_bubble, 1.0 / 8);
  EXPECT_EQ(reports[0].peak_memory, 9u);
  EXPECT_EQ(reports[0].peak_at, 2);  // when the peak is first reached
  EXPECT_EQ(reports[1].busy, 0);
  EXPECT_EQ(reports[1].bubble, 1);
  EXPECT_EQ(reports[1].own_bubble, 0);
}

TEST(PlanReport, ComputesBubblesOfStepsShorterThanOneSecond) {
  const MicrobatchId m0(0);
  schedule::Timeline timeline;
  timeline.placement = schedule::Placement::make(2, 2, schedule::PlacementStyle::Loop);
  timeline.microbatches = 1;
  timeline.ranks = {{{schedule::Action::forward(StageId(0), m0), 0, 0.25},
                     {schedule::Action::backward(StageId(0), m0), 0.375, 0.5}},
                    {{schedule::Action::forward(StageId(1), m0), 0.25, 0.375}}};
  const std::vector<RankReport> reports = report_ranks(timeline);
  EXPECT_EQ(reports[0].bubble, 1 - 0.375 / 0.5);
  EXPECT_EQ(reports[0].own_bubble, 1 - 0.375 / 0.5);
  EXPECT_EQ(reports[1].bubble, 1 - 0.125 / 0.5);
  EXPECT_EQ(reports[1].own_bubble, 0);
}

TEST(PlanReport, PeakMemoryIsThatOfFullestRank) {
  Simulation result;
  EXPECT_EQ(result.peak_memory(), 0u);
  result.ranks.resize(3);
  EXPECT_EQ(result.peak_memory(), 0u);
  result.ranks[1].peak_memory = 5;
  result.ranks[2].peak_memory = 3;
  EXPECT_EQ(result.peak_memory(), 5u);
}

TEST(PlanReport, StepWithoutDurationHasNoBubble) {
  const MicrobatchId m0(0);
  schedule::Timeline timeline;
  timeline.placement = schedule::Placement::make(1, 1, schedule::PlacementStyle::Loop);
  timeline.microbatches = 1;
  timeline.ranks = {{{schedule::Action::forward(StageId(0), m0), 0, 0}}};
  EXPECT_EQ(report_ranks(timeline)[0].bubble, 0);
  EXPECT_EQ(report_ranks(timeline)[0].own_bubble, 0);
  timeline.ranks[0][0] = {schedule::Action::forward(StageId(0), m0), 5, 5};
  EXPECT_EQ(report_ranks(timeline)[0].bubble, 1);
  EXPECT_EQ(report_ranks(timeline)[0].own_bubble, 0);
}

double bound(int ranks, int stages, int microbatches, const Costs& costs, bool has_backward = true,
             schedule::PlacementStyle style = schedule::PlacementStyle::Loop) {
  return lower_bound(schedule::Placement::make(ranks, stages, style), microbatches, costs, has_backward);
}

TEST(PlanLowerBound, EqualsKnownOptimum) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 2 * p; m <= 3 * p; ++m) {
      // At equal costs, no step is shorter than its fill plus its work, and ZB2P and ZBV reach this bound.
      EXPECT_DOUBLE_EQ(bound(p, p, m, Costs::uniform(p)), 3.0 * m + p - 1);
      EXPECT_DOUBLE_EQ(bound(p, 2 * p, m, Costs::uniform(2 * p), true, schedule::PlacementStyle::V),
                       6.0 * m + p - 1);
    }
    // One microbatch passes through all stages and back; W of stage 0 comes last.
    EXPECT_DOUBLE_EQ(bound(p, p, 1, Costs::uniform(p)), 2.0 * p + 1);
    // Forwards only: the work of the last rank after the fill.
    for (const int m : {1, 7}) EXPECT_DOUBLE_EQ(bound(p, p, m, Costs::uniform(p), false), m + p - 1.0);
  }
}

TEST(PlanLowerBound, MatchesHandComputedUnevenStagesAndLinks) {
  Costs costs;
  costs.stages = {{.forward = 1, .input = 3, .weight = 5}, {.forward = 2, .input = 4, .weight = 6}};
  costs.stages[0].output_bytes = 2;
  costs.link = {.latency = 0.25, .bandwidth = 8};
  // F0, a transfer of 0.5, F1, I1, a transfer back, I0, W0.
  EXPECT_DOUBLE_EQ(bound(2, 2, 1, costs), 1 + 0.5 + 2 + 4 + 0.5 + 3 + 5);
  // Rank 1 waits for F0 and a transfer, then works 12 per microbatch.
  EXPECT_DOUBLE_EQ(bound(2, 2, 3, costs), 1.5 + 3 * 12);
  // All F and I of rank 1, then the path of the last gradient: the W of rank 1 do not count.
  costs.stages[1].weight = 0;
  costs.stages[0].weight = 0.5;
  EXPECT_DOUBLE_EQ(bound(2, 2, 3, costs), 1.5 + 3 * 6 + 0.5 + 3 + 0.5);
  // Each direction has its own links.
  costs.links[{Rank(1), Rank(0)}] = {.latency = 10};
  EXPECT_DOUBLE_EQ(bound(2, 2, 3, costs), 1.5 + 3 * 6 + 10 + 3 + 0.5);
  // Nothing is sent within a rank.
  EXPECT_DOUBLE_EQ(bound(1, 2, 3, costs), 3 * (1 + 3 + 0.5 + 2 + 4));
}

TEST(PlanLowerBound, OneMicrobatchPassesEveryStageAndReturns) {
  // Two stages on each of two ranks: all F and I, the transfers between them in both directions, then W of
  // stage 0.
  Costs costs = Costs::uniform(4, {.forward = 1, .input = 2, .weight = 4});
  EXPECT_DOUBLE_EQ(bound(2, 4, 1, costs), 4 * (1 + 2) + 4);
  costs.link.latency = 0.5;
  EXPECT_DOUBLE_EQ(bound(2, 4, 1, costs), 4 * (1 + 2) + 4 + 6 * 0.5);
  EXPECT_DOUBLE_EQ(bound(2, 4, 1, costs, true, schedule::PlacementStyle::V), 4 * (1 + 2) + 4 + 4 * 0.5);
  EXPECT_DOUBLE_EQ(bound(2, 4, 1, costs, false), 4 + 3 * 0.5);
}

TEST(PlanLowerBound, IgnoresRanksWithoutStages) {
  EXPECT_EQ(lower_bound({}, 1, {}), 0);
  const schedule::Placement idle(2, {Rank(0)});  // rank 1 has no stage
  EXPECT_EQ(lower_bound(idle, 2, Costs::uniform(1)), 6);
}

TEST(PlanLowerBound, CountsShorterBackwardRecomputationAndOverlap) {
  Costs costs = Costs::uniform(1, {.forward = 2, .input = 3, .weight = 4, .backward = 5});
  EXPECT_DOUBLE_EQ(bound(1, 1, 3, costs), 3 * (2 + 5));
  costs.stages[0].backward = 9;  // then I and W are faster
  EXPECT_DOUBLE_EQ(bound(1, 1, 3, costs), 3 * (2 + 7));
  costs.stages[0].recompute = true;
  EXPECT_DOUBLE_EQ(bound(1, 1, 3, costs), 3 * (2 + 2 + 7));
  costs.overlap = 0.5;
  EXPECT_DOUBLE_EQ(bound(1, 1, 3, costs), 3 * (2 + 2 + 7 - 1));
}

}  // namespace
}  // namespace penstock::plan
