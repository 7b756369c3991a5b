// The arithmetic of costs, their text, and the costs that are rejected.
#include "plan/cost_text.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/plan/auto_schedule.h>
#include <penstock/plan/partition.h>
#include <penstock/plan/planner.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace penstock::plan {
namespace {

using test::error_message;
using testing::HasSubstr;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

StageCosts first_layer() {
  return {.forward = 1,
          .input = 2,
          .weight = 4,
          .backward = std::nullopt,
          .unshard = 8,
          .reshard = 16,
          .reduce_grad = 32,
          .activation_bytes = 1,
          .weight_bytes = 2,
          .output_bytes = 3,
          .input_bytes = 4,
          .parameter_bytes = 5,
          .gradient_bytes = 6,
          .optimizer_bytes = 7,
          .unsharded_bytes = 8};
}

StageCosts second_layer() {
  StageCosts costs = first_layer();
  for (double* time :
       {&costs.forward, &costs.input, &costs.weight, &costs.unshard, &costs.reshard, &costs.reduce_grad})
    *time *= 100;
  for (std::uint64_t* bytes :
       {&costs.activation_bytes, &costs.weight_bytes, &costs.output_bytes, &costs.input_bytes,
        &costs.parameter_bytes, &costs.gradient_bytes, &costs.optimizer_bytes, &costs.unsharded_bytes})
    *bytes *= 100;
  return costs;
}

TEST(PlanMergeLayers, SumsEveryField) {
  const std::vector<Layer> layers{{"a", first_layer()}, {"b", second_layer()}};
  const StageCosts expected{.forward = 101,
                            .input = 202,
                            .weight = 404,
                            .backward = std::nullopt,
                            .unshard = 808,
                            .reshard = 1616,
                            .reduce_grad = 3232,
                            .activation_bytes = 101,
                            .weight_bytes = 202,
                            .output_bytes = 300,  // the message of the last layer
                            .input_bytes = 4,     // the input of the first layer
                            .parameter_bytes = 505,
                            .gradient_bytes = 606,
                            .optimizer_bytes = 707,
                            .unsharded_bytes = 808};
  EXPECT_EQ(merge_layers(layers), expected);
  EXPECT_EQ(merge_layers(std::span(layers).first(1)), first_layer());
}

TEST(PlanMergeLayers, KeepsExplicitFullBackwardAndRecomputation) {
  std::vector<Layer> layers{{"a", first_layer()}, {"b", first_layer()}};
  layers[1].costs.backward = 5;
  EXPECT_EQ(merge_layers(layers).backward, 6 + 5);
  EXPECT_FALSE(merge_layers(layers).recompute);
  layers[0].costs.recompute = true;
  EXPECT_TRUE(merge_layers(layers).recompute);
}

TEST(PlanMergeLayers, EmptyListGivesZeroCosts) {
  const StageCosts nothing = merge_layers({});
  EXPECT_EQ(nothing.total_time(), 0);
  EXPECT_EQ(nothing.in_flight_bytes() + nothing.resident_bytes() + nothing.output_bytes, 0u);
}

TEST(PlanCosts, StageTimesAndBytesFollowFromFields) {
  StageCosts stage = first_layer();
  EXPECT_EQ(stage.full_backward(), 6);
  EXPECT_EQ(stage.total_time(), 7);
  EXPECT_EQ(stage.resident_bytes(), 18u);
  EXPECT_EQ(stage.in_flight_bytes(), 3u);
  stage.backward = 5;
  stage.recompute = true;
  EXPECT_EQ(stage.full_backward(), 5);
  EXPECT_EQ(stage.total_time(), 7);
  EXPECT_EQ(stage.in_flight_bytes(), 4u);
}

TEST(PlanCosts, EveryActionHasDuration) {
  const StageId stage(0);
  const MicrobatchId microbatch(0);
  Costs costs = Costs::uniform(2, first_layer());
  costs.stages[1].forward = 100;
  costs.overlap = 0.25;
  const auto duration = [&](const schedule::Action& action) { return duration_of(action, costs); };
  EXPECT_EQ(duration(schedule::Action::forward(stage, microbatch)), 1);
  EXPECT_EQ(duration(schedule::Action::backward_input(stage, microbatch)), 2);
  EXPECT_EQ(duration(schedule::Action::backward_weight(stage, microbatch)), 4);
  EXPECT_EQ(duration(schedule::Action::backward(stage, microbatch)), 6);
  EXPECT_EQ(duration(schedule::Action::unshard(stage)), 8);
  EXPECT_EQ(duration(schedule::Action::reshard(stage)), 16);
  EXPECT_EQ(duration(schedule::Action::reduce_grad(stage)), 32);
  EXPECT_EQ(duration(schedule::Action()), 0);
  EXPECT_EQ(duration(schedule::Action::send_forward(stage, microbatch, StageId(1))), 0);
  const schedule::Action backward = schedule::Action::backward(stage, microbatch);
  EXPECT_EQ(duration(schedule::Action::overlap(schedule::Action::forward(stage, MicrobatchId(1)), backward)),
            1 + 6 - 0.25);
  EXPECT_EQ(duration(schedule::Action::overlap(schedule::Action::forward(StageId(1), microbatch), backward)),
            100 + 6 - 1.5);
  costs.stages[0].recompute = true;
  EXPECT_EQ(duration(schedule::Action::forward(stage, microbatch)), 1);
  EXPECT_EQ(duration(backward), 7);
  EXPECT_EQ(duration(schedule::Action::backward_input(stage, microbatch)), 3);
  EXPECT_EQ(duration(schedule::Action::backward_weight(stage, microbatch)), 4);
}

TEST(PlanCosts, LinksAndMessagesArePerPair) {
  Costs costs = Costs::uniform(3);
  costs.stages[0].output_bytes = 10;
  costs.stages[1].output_bytes = 20;
  costs.link = {.latency = 1, .bandwidth = 5};
  EXPECT_EQ(costs.link_between(Rank(0), Rank(1)).time(10), 3);
  costs.links[{Rank(0), Rank(1)}] = {.latency = 2, .bandwidth = 10};
  EXPECT_EQ(costs.link_between(Rank(0), Rank(1)).time(10), 3);
  EXPECT_EQ(costs.link_between(Rank(0), Rank(1)).latency, 2);
  EXPECT_EQ(costs.link_between(Rank(1), Rank(0)).latency, 1);
  costs.skip_bytes[{StageId(0), StageId(2)}] = 7;
  EXPECT_EQ(costs.message_bytes(StageId(0), StageId(1)), 10u);
  EXPECT_EQ(costs.message_bytes(StageId(1), StageId(0)), 10u);
  EXPECT_EQ(costs.message_bytes(StageId(2), StageId(1)), 20u);
  EXPECT_EQ(costs.message_bytes(StageId(0), StageId(2)), 7u);
  EXPECT_EQ(costs.message_bytes(StageId(2), StageId(0)), 7u);
}

TEST(PlanCosts, ReportsEachInvalidField) {
  const std::pair<const char*, double StageCosts::*> fields[] = {
      {"forward", &StageCosts::forward}, {"input", &StageCosts::input},
      {"weight", &StageCosts::weight},   {"unshard", &StageCosts::unshard},
      {"reshard", &StageCosts::reshard}, {"reduce_grad", &StageCosts::reduce_grad}};
  for (const auto& [name, field] : fields) {
    for (const double wrong : {-1.0, kInfinite, std::nan("")}) {
      Costs costs = Costs::uniform(3);
      costs.stages[2].*field = wrong;
      EXPECT_THAT(error_message<UsageError>([&] { check_costs(costs, 3); }),
                  HasSubstr(std::string("stage 2: ") + name));
      const std::vector<Layer> layers{{"", {}}, {"", costs.stages[2]}};
      EXPECT_THAT(error_message<UsageError>([&] { check_layers(layers); }),
                  HasSubstr(std::string("layer 1: ") + name));
    }
    Costs free = Costs::uniform(1);
    free.stages[0].*field = 0;
    EXPECT_EQ(error_message<UsageError>([&] { check_costs(free, 1); }), "no error");
  }
  Costs costs = Costs::uniform(1);
  costs.stages[0].backward = -1;
  EXPECT_THAT(error_message<UsageError>([&] { check_costs(costs, 1); }), HasSubstr("backward"));
  const auto with = [](auto change) {
    Costs changed = Costs::uniform(1);
    change(changed);
    return error_message<UsageError>([&] { check_costs(changed, 1); });
  };
  EXPECT_THAT(with([](Costs& c) { c.link.latency = -1; }), HasSubstr("latency"));
  EXPECT_THAT(with([](Costs& c) { c.link.latency = kInfinite; }), HasSubstr("latency"));
  EXPECT_THAT(with([](Costs& c) { c.link.bandwidth = 0; }), HasSubstr("bandwidth"));
  EXPECT_THAT(with([](Costs& c) { c.links[{Rank(0), Rank(1)}].bandwidth = -1; }), HasSubstr("bandwidth"));
  EXPECT_THAT(with([](Costs& c) { c.overlap = 1.1; }), HasSubstr("overlap"));
  EXPECT_THAT(with([](Costs& c) { c.overlap = -0.1; }), HasSubstr("overlap"));
  EXPECT_THAT(with([](Costs& c) { c.overhead = -1; }), HasSubstr("overhead"));
  EXPECT_THAT(with([](Costs& c) { c.overhead = kInfinite; }), HasSubstr("overhead"));
  EXPECT_EQ(with([](Costs& c) { c.overlap = 1; }), "no error");
  EXPECT_EQ(with([](Costs& c) { c.overlap = 0; }), "no error");
}

// Each number is finite, but the totals are not.
TEST(PlanCosts, RejectsOverflowingTotals) {
  const schedule::Program program =
      make_program(schedule::make_schedule("1F1B", {2, 1, 8}), schedule::SendMode::Buffered);
  std::vector<Costs> wrong(7, Costs::uniform(2));
  wrong[0].stages[0].forward = 1e308;
  wrong[1].stages[1].backward = 1e308;
  wrong[2].stages[0].weight = 1e308;
  wrong[3].link.latency = 1e308;
  wrong[4].stages[0].output_bytes = 1000;
  wrong[4].link.bandwidth = 1e-306;
  wrong[6].links[{Rank(1), Rank(0)}].latency = 1e308;
  wrong[5].stages[0].reduce_grad = wrong[5].stages[1].unshard = 1.5e308;
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_THAT(error_message<UsageError>([&] { simulate(program, wrong[i]); }),
                HasSubstr("sum of the times overflows"))
        << i;
    EXPECT_THAT(error_message<UsageError>([&] { lower_bound(program.placement(), 8, wrong[i]); }),
                HasSubstr("sum of the times overflows"))
        << i;
    EXPECT_THAT(error_message<UsageError>([&] { make_auto_schedule(2, 8, wrong[i]); }),
                HasSubstr("sum of the times overflows"))
        << i;
    EXPECT_THAT(error_message<UsageError>([&] { plan_stages(wrong[i], {.ranks = 2, .microbatches = {8}}); }),
                HasSubstr("sum of the times overflows"))
        << i;
  }
  Costs bytes = Costs::uniform(2);
  for (std::uint64_t StageCosts::*field :
       {&StageCosts::activation_bytes, &StageCosts::weight_bytes, &StageCosts::input_bytes,
        &StageCosts::parameter_bytes, &StageCosts::gradient_bytes, &StageCosts::optimizer_bytes,
        &StageCosts::unsharded_bytes}) {
    Costs large = bytes;
    large.stages[1].*field = std::numeric_limits<std::uint64_t>::max();
    EXPECT_THAT(error_message<UsageError>([&] { simulate(program, large); }),
                HasSubstr("sum of the bytes exceeds"));
    const std::vector<Layer> layers{{"", large.stages[1]}, {"", {}}};
    EXPECT_THAT(error_message<UsageError>([&] { merge_layers(layers); }),
                HasSubstr("sum of the bytes exceeds"));
  }
  bytes.stages[0].activation_bytes = std::uint64_t{1} << 61;  // one fits, eight do not
  EXPECT_EQ(error_message<UsageError>([&] { check_costs(bytes, 2); }), "no error");
  EXPECT_THAT(error_message<UsageError>([&] { simulate(program, bytes); }),
              HasSubstr("sum of the bytes exceeds"));
}

// The limits are those of the sum: each term counts, and a sum just below a limit is accepted.
TEST(PlanCosts, TotalsCountEveryTerm) {
  const auto message = [](const Costs& costs, int microbatches = 1) {
    return error_message<UsageError>(
        [&] { check_costs(costs, static_cast<int>(costs.stages.size()), microbatches); });
  };
  const std::string overflow = "the sum of the times overflows\nhint: use a larger unit of time";
  // The largest double is about 1.8e308. A forward pass counts twice, because it may be recomputed.
  const StageCosts half{.forward = 0.7e308, .input = 0, .weight = 0};
  EXPECT_EQ(message(Costs::uniform(1, half)), "no error");
  for (double StageCosts::*field : {&StageCosts::input, &StageCosts::weight, &StageCosts::unshard,
                                    &StageCosts::reshard, &StageCosts::reduce_grad}) {
    StageCosts stage = half;
    stage.*field = 0.3e308;
    EXPECT_EQ(message(Costs::uniform(1, stage)), "no error");
    stage.*field = 0.7e308;
    EXPECT_EQ(message(Costs::uniform(1, stage)), overflow);
    EXPECT_EQ(error_message<UsageError>([&] { check_layers(std::vector<Layer>{{"", stage}}); }), overflow);
  }
  EXPECT_EQ(message(Costs::uniform(1, {.forward = 0, .input = 1e308, .weight = 1e308, .backward = 1})),
            overflow);  // a schedule may split the backward pass
  // Two stages exchange at most four messages per microbatch.
  Costs links = Costs::uniform(2);
  links.link.latency = 0.4e308;
  EXPECT_EQ(message(links), "no error");
  links.link.latency = 0.5e308;
  EXPECT_EQ(message(links), overflow);
  links.link.latency = 0.25e308;
  EXPECT_EQ(message(links), "no error");
  links.stages[0].forward = 0.5e308;
  EXPECT_EQ(message(links), overflow);
  // Messages without bytes take no time on a slow link; the largest message counts.
  Costs slow = Costs::uniform(3);
  slow.link.bandwidth = 1e-308;
  EXPECT_EQ(message(slow), "no error");
  slow.skip_bytes[{StageId(0), StageId(2)}] = 1;
  EXPECT_EQ(message(slow), overflow);
}

TEST(PlanCosts, RejectsLayersWithOverflowingTotals) {
  std::vector<Layer> layers(4);
  for (Layer& layer : layers) layer.costs.forward = 4e307;
  const std::vector<Rank> two{Rank(0), Rank(1)};
  EXPECT_THAT(error_message<UsageError>([&] { merge_layers(layers); }),
              HasSubstr("sum of the times overflows"));
  EXPECT_THAT(error_message<UsageError>([&] {
                partition_layers(layers, {two, {}, {}});
              }),
              HasSubstr("sum of the times overflows"));
  EXPECT_THAT(error_message<UsageError>([&] { plan_layers(layers, {}, {.ranks = 2, .microbatches = {4}}); }),
              HasSubstr("sum of the times overflows"));
  for (Layer& layer : layers) layer.costs = {.activation_bytes = std::uint64_t{1} << 60};
  EXPECT_EQ(error_message<UsageError>([&] { partition_layers(layers, {two, {}, {}}); }), "no error");
  EXPECT_THAT(error_message<UsageError>([&] {
                partition_layers(layers, {two, {1, 8}, {}});
              }),
              HasSubstr("sum of the bytes exceeds"));
  EXPECT_THAT(error_message<UsageError>([&] {
                partition_layers(layers, {two, {1, -1}, {}});
              }),
              HasSubstr("in_flight"));
  Costs links;
  links.overhead = kInfinite;
  EXPECT_THAT(error_message<UsageError>(
                  [&] { plan_layers(std::vector<Layer>(4), links, {.ranks = 2, .microbatches = {4}}); }),
              HasSubstr("overhead"));
}

// Measured with many microbatches and planned for one: its bytes are larger by that factor.
TEST(PlanCosts, MicrobatchWithOverflowingBytesIsImpossiblePlan) {
  std::vector<Layer> layers(2);
  layers[0].costs.activation_bytes = std::uint64_t{1} << 54;
  const PlanResult result = plan_layers(layers, {},
                                        {.ranks = 1,
                                         .microbatches = {1},
                                         .measured_microbatches = 1024,
                                         .stages_per_rank = {1},
                                         .schedules = {schedule::ScheduleKind::OneFOneB}});
  for (const Plan& plan : result.plans) {
    EXPECT_EQ(plan.verdict, PlanVerdict::Impossible);
    EXPECT_THAT(plan.why, HasSubstr("bytes"));
  }
}

TEST(PlanCostText, ListsKeysOfStage) {
  StageCosts costs{.forward = 0.00125, .input = 2, .weight = 3e-9, .activation_bytes = 1, .output_bytes = 2};
  costs.input_bytes = 3;
  costs.parameter_bytes = 4;
  costs.gradient_bytes = 5;
  costs.optimizer_bytes = 6;
  const std::string times = "forward = 1.250000e-03\ninput = 2.000000e+00\nweight = 3.000000e-09\n";
  const std::string bytes =
      "activation_bytes = 1\ninput_bytes = 3\noutput_bytes = 2\nparameter_bytes = 4\ngradient_bytes = 5\n"
      "optimizer_bytes = 6\n";
  EXPECT_EQ(to_toml(costs), times + bytes);
  costs.backward = 4;
  EXPECT_EQ(to_toml(costs), times + "backward = 4.000000e+00\n" + bytes);
}

}  // namespace
}  // namespace penstock::plan
