// The planner's numbers and messages, compared with values computed by hand.
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/plan/planner.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::plan {
namespace {

using test::error_message;
using testing::HasSubstr;

const Plan& find(const PlanResult& result, const std::string& schedule, int microbatches,
                 bool recompute = false) {
  for (const Plan& plan : result.plans) {
    if (to_string(plan.schedule) == schedule && plan.microbatches == microbatches &&
        plan.recompute == recompute)
      return plan;
  }
  throw std::runtime_error("no such plan");
}

TEST(PlanNumbers, SmallerMicrobatchesScaleAllCostsExceptOverhead) {
  // One rank, two layers of F = I = 2 and W = 0.25, measured with 4 microbatches.
  const StageCosts each{.forward = 2,
                        .input = 2,
                        .weight = 0.25,
                        .activation_bytes = 3,
                        .weight_bytes = 1,
                        .parameter_bytes = 100};
  const std::vector<Layer> layers{{"a", each}, {"b", each}};
  Costs links;
  links.overhead = 0.5;
  const PlanResult result = plan_layers(layers, links,
                                        {.ranks = 1,
                                         .microbatches = {4, 8, 2},
                                         .stages_per_rank = {1},
                                         .schedules = {schedule::ScheduleKind::OneFOneB},
                                         .recomputation = false});
  EXPECT_DOUBLE_EQ(find(result, "1F1B", 4).step_time, 4 * 2 * (2 + 2 + 0.25));
  EXPECT_DOUBLE_EQ(find(result, "1F1B", 8).step_time, 8 * 2 * (1.25 + 1.25 + 0.25));  // 0.5 + 1.5 / 2
  EXPECT_DOUBLE_EQ(find(result, "1F1B", 2).step_time, 2 * 2 * (3.5 + 3.5 + 0.25));    // 0.5 + 1.5 * 2
  EXPECT_EQ(find(result, "1F1B", 4).peak_memory, 2u * (100 + 4));
  EXPECT_EQ(find(result, "1F1B", 8).peak_memory, 2u * (100 + 2 + 1));  // half of the bytes, rounded up
  EXPECT_EQ(find(result, "1F1B", 2).peak_memory, 2u * (100 + 8));
}

TEST(PlanNumbers, ScalesExplicitFullBackward) {
  Costs costs = Costs::uniform(1, {.forward = 2, .input = 2, .weight = 2, .backward = 3});
  const PlanOptions options{.ranks = 1,
                            .microbatches = {8},
                            .measured_microbatches = 4,
                            .schedules = {schedule::ScheduleKind::OneFOneB},
                            .recomputation = false};
  EXPECT_DOUBLE_EQ(plan_stages(costs, options).plans.front().step_time, 8 * (1 + 1.5));
}

TEST(PlanNumbers, ComputesBubbleSharesOfTinyPipeline) {
  Costs costs = Costs::uniform(2);
  costs.stages[1] = {.forward = 2, .input = 2, .weight = 2};
  costs.link.latency = 0.5;
  const PlanResult result = plan_stages(costs, {.ranks = 2,
                                                .microbatches = {2},
                                                .schedules = {schedule::ScheduleKind::OneFOneB},
                                                .recomputation = false});
  const Plan& plan = result.plans.front();
  // Rank 1: F0 1.5 to 3.5, B0 to 7.5, F1 to 9.5, B1 to 13.5; rank 0: B1 14 to 16. With free links the step
  // ends at 15.
  EXPECT_DOUBLE_EQ(plan.step_time, 16);
  EXPECT_DOUBLE_EQ(plan.shares.compute, 9);  // mean of 6 and 12
  EXPECT_DOUBLE_EQ(plan.shares.imbalance, 3);
  EXPECT_DOUBLE_EQ(plan.shares.bubble, 3);
  EXPECT_DOUBLE_EQ(plan.shares.communication, 1);
  EXPECT_DOUBLE_EQ(plan.bubble, 1 - 9.0 / 16);
  EXPECT_EQ(plan.peak_memory, 2u);
  EXPECT_EQ(plan.verdict, PlanVerdict::Best);
  EXPECT_EQ(plan.why, "");
  EXPECT_TRUE(plan.first_layer.empty());
}

TEST(PlanNumbers, PrefersSimplerPlanAmongEquals) {
  // On one rank all schedules take the same time; GPipe keeps every microbatch, 1F1B one.
  const PlanResult result = plan_stages(
      Costs::uniform(1),
      {.ranks = 1,
       .microbatches = {4},
       .schedules = {AutoSchedule{}, schedule::ScheduleKind::GPipe, schedule::ScheduleKind::OneFOneB}});
  EXPECT_EQ(to_string(result.plans[0].schedule), "1F1B");
  EXPECT_EQ(to_string(result.plans[1].schedule), "GPipe");
  EXPECT_EQ(to_string(result.plans[2].schedule), "Auto");
  EXPECT_EQ(result.plans[1].why, "as fast");
  EXPECT_EQ(result.plans[2].why, "as fast");
  // Recomputation takes one third more time.
  EXPECT_EQ(result.plans[3].recompute, true);
  EXPECT_EQ(result.plans[3].why, "recomputation: +33.3% of the best step time");
  ASSERT_TRUE(result.schedule);
  EXPECT_EQ(result.schedule->name, "1F1B");
}

TEST(PlanNumbers, SortsPlansThatDoNotFitByMemory) {
  const PlanResult result =
      plan_stages(Costs::uniform(2, {.activation_bytes = 100}),
                  {.ranks = 2,
                   .microbatches = {6},
                   .schedules = {schedule::ScheduleKind::GPipe, schedule::ScheduleKind::OneFOneB,
                                 schedule::ScheduleKind::ZBVZeroBubble, schedule::ScheduleKind::OneFOneB},
                   .memory_cap = 150,
                   .recomputation = false});
  ASSERT_EQ(result.plans.size(), 3u);  // ZBV requires two stages per rank
  EXPECT_EQ(to_string(result.plans[0].schedule), "1F1B");
  EXPECT_EQ(result.plans[0].why, "does not fit: needs 200 B");
  EXPECT_EQ(to_string(result.plans[2].schedule), "GPipe");
  EXPECT_EQ(result.plans[2].why, "does not fit: needs 600 B");
  EXPECT_FALSE(result.schedule);
  const PlanResult exactly = plan_stages(Costs::uniform(2, {.activation_bytes = 100}),
                                         {.ranks = 2,
                                          .microbatches = {6},
                                          .schedules = {schedule::ScheduleKind::OneFOneB},
                                          .memory_cap = 200,
                                          .recomputation = false});
  EXPECT_EQ(exactly.plans[0].verdict, PlanVerdict::Best);
}

TEST(PlanNumbers, ReasonsNameDominantCost) {
  // DualPipeV overlaps; Interleaved1F1B with the same stages computes longer.
  Costs overlapping = Costs::uniform(4);
  overlapping.overlap = 1;
  const PlanResult result = plan_stages(
      overlapping, {.ranks = 2,
                    .microbatches = {16},
                    .schedules = {schedule::ScheduleKind::DualPipeV, schedule::ScheduleKind::Interleaved1F1B},
                    .recomputation = false});
  EXPECT_EQ(to_string(result.plans[0].schedule), "DualPipeV");
  EXPECT_THAT(result.plans[1].why, testing::StartsWith("less overlap: +"));
}

TEST(PlanNumbers, ReportsScheduleThatCannotHaveShape) {
  const PlanResult result =
      plan_stages(Costs::uniform(4),
                  {.ranks = 2,
                   .microbatches = {1, 4},
                   .schedules = {schedule::ScheduleKind::ZBVZeroBubble, schedule::ScheduleKind::OneFOneB,
                                 schedule::ScheduleKind::LoopedBFS}});
  for (const Plan& plan : result.plans) {
    EXPECT_NE(to_string(plan.schedule), "1F1B") << "it has one stage per rank only";
    if (plan.verdict == PlanVerdict::Impossible) {
      EXPECT_FALSE(plan.why.empty());
      EXPECT_EQ(plan.step_time, 0);
    }
  }
}

TEST(PlanNumbers, AutoPlansUpTo30000Actions) {
  // F, I and W per microbatch.
  const PlanResult result =
      plan_stages(Costs::uniform(1), {.ranks = 1,
                                      .microbatches = {10'000, 10'001},
                                      .schedules = {AutoSchedule{}, schedule::ScheduleKind::OneFOneB},
                                      .recomputation = false});
  EXPECT_LE(find(result, "Auto", 10'000).verdict, PlanVerdict::Slower);
  EXPECT_EQ(find(result, "Auto", 10'001).verdict, PlanVerdict::Impossible);
  EXPECT_EQ(find(result, "Auto", 10'001).why, "the schedule has too many actions for Auto");
}

TEST(PlanNumbers, ScalesMessagesAndKeptInputs) {
  // Twice the microbatches: half of the bytes of a message, and of the input that recomputation keeps.
  Costs costs = Costs::uniform(2, {.activation_bytes = 0, .output_bytes = 8, .input_bytes = 6});
  costs.link.bandwidth = 8;
  const PlanResult result = plan_stages(costs, {.ranks = 2,
                                                .microbatches = {4},
                                                .measured_microbatches = 2,
                                                .schedules = {schedule::ScheduleKind::GPipe}});
  // Stages of 1.5 per microbatch, and messages of 0.5: one on the way there, one on the way back.
  EXPECT_DOUBLE_EQ(find(result, "GPipe", 4).step_time, 4 * 1.5 + 1.5 + 2 * 0.5);
  EXPECT_EQ(find(result, "GPipe", 4, true).peak_memory, 4u * 3);
}

TEST(PlanNumbers, EqualPlansPreferFewerStages) {
  Costs costs = Costs::uniform(2);
  costs.stages[0] = {.forward = 3, .input = 3, .weight = 3};
  const std::vector<Layer> layers{{"a", costs.stages[0]}, {"b", costs.stages[1]}};
  const PlanResult result = plan_layers(layers, {},
                                        {.ranks = 1,
                                         .microbatches = {1},
                                         .stages_per_rank = {1, 2},
                                         .schedules = {schedule::ScheduleKind::LoopedBFS},
                                         .recomputation = false});
  ASSERT_EQ(result.plans.size(), 2u);  // both take the same time; fewer stages come first
  EXPECT_EQ(result.plans[0].stages_per_rank, 1);
  EXPECT_EQ(result.plans[0].first_layer, (std::vector<int>{0, 2}));
  EXPECT_EQ(result.plans[1].first_layer, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(result.plans[1].why, "as fast");
}

TEST(PlanNumbers, ScheduleChoicesHaveNames) {
  EXPECT_TRUE(is_auto(parse_schedule_choice("AUTO")));
  EXPECT_EQ(to_string(parse_schedule_choice("auto")), "Auto");
  EXPECT_EQ(to_string(parse_schedule_choice("1f1b")), "1F1B");
  EXPECT_ERROR(parse_schedule_choice("automatic"), UsageError, "unknown schedule 'automatic'");
}

TEST(PlanNumbers, RejectsInvalidInputWithReason) {
  const std::vector<Layer> layers(6);
  const auto plan = [&](PlanOptions options) {
    return error_message<UsageError>([&] { plan_layers(layers, {}, options); });
  };
  EXPECT_EQ(plan({.ranks = 0, .microbatches = {4}}),
            "a plan needs at least one rank\nhint: set ranks to 1 or more");
  EXPECT_EQ(plan({.ranks = 2, .microbatches = {}}),
            "a plan needs at least one number of microbatches\n"
            "hint: list the numbers to try in microbatches, such as 4 and 8");
  EXPECT_EQ(plan({.ranks = 2, .microbatches = {4, 0}}),
            "microbatches must be 1 or more, not 0\n"
            "hint: remove this number from the list, or replace it by 1 or more");
  EXPECT_EQ(plan({.ranks = 7, .microbatches = {4}}), "6 layers cannot fill 7 ranks");
  EXPECT_EQ(plan({.ranks = 6, .microbatches = {6}, .schedules = {schedule::ScheduleKind::OneFOneB}}),
            "no error");
  EXPECT_THAT(plan({.ranks = 2,
                    .microbatches = {4},
                    .stages_per_rank = {1},
                    .schedules = {schedule::ScheduleKind::ZBVZeroBubble}}),
              HasSubstr("none of the schedules"));
  EXPECT_EQ(error_message<UsageError>([] { plan_layers({}, {}, {.ranks = 1, .microbatches = {1}}); }),
            "a plan needs at least one layer");
  EXPECT_EQ(error_message<UsageError>([] { plan_stages({}, {.ranks = 1, .microbatches = {1}}); }),
            "a plan needs at least one stage");
  EXPECT_EQ(
      error_message<UsageError>([] { plan_stages(Costs::uniform(6), {.ranks = 4, .microbatches = {4}}); }),
      "6 stages cannot be divided evenly among 4 ranks");
}

}  // namespace
}  // namespace penstock::plan
