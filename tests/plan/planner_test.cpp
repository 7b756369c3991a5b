// Tests of the planner: ranking, memory cap, and reasons.
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/plan/partition.h>
#include <penstock/plan/planner.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <span>
#include <string>

namespace penstock::plan {
namespace {

using testing::HasSubstr;

std::vector<Layer> model(int blocks) {
  StageCosts block{.forward = 1,
                   .input = 1,
                   .weight = 1,
                   .activation_bytes = 100,
                   .weight_bytes = 20,
                   .output_bytes = 10,
                   .input_bytes = 10,
                   .parameter_bytes = 50};
  std::vector<Layer> layers(static_cast<std::size_t>(blocks), Layer{"block", block});
  block.parameter_bytes = 200;
  layers.front() = {"embedding", block};
  block.forward = 2;
  layers.back() = {"head", block};
  return layers;
}

TEST(PlanPlanner, RanksPlansByTimeWithReasons) {
  const auto layers = model(16);
  const PlanOptions options{.ranks = 4, .microbatches = {8, 16}, .memory_cap = 2600};
  const PlanResult result = plan_layers(layers, {}, options);
  ASSERT_EQ(result.plans.front().verdict, PlanVerdict::Best);
  ASSERT_TRUE(result.schedule);
  double before = 0;
  std::set<PlanVerdict> seen;
  for (const Plan& plan : result.plans) {
    seen.insert(plan.verdict);
    if (plan.verdict == PlanVerdict::Best || plan.verdict == PlanVerdict::Slower) {
      EXPECT_GE(plan.step_time, before);
      EXPECT_LE(plan.peak_memory, 2600u);
      before = plan.step_time;
    }
    if (plan.verdict == PlanVerdict::DoesNotFit) {
      EXPECT_GT(plan.peak_memory, 2600u);
      EXPECT_THAT(plan.why, HasSubstr("does not fit"));
    }
    EXPECT_NE(plan.verdict == PlanVerdict::Best, !plan.why.empty()) << to_string(plan.schedule);
    EXPECT_NEAR(plan.shares.total(), plan.step_time, 1e-9);
  }
  EXPECT_TRUE(seen.contains(PlanVerdict::DoesNotFit) && seen.contains(PlanVerdict::Slower));
}

TEST(PlanPlanner, PlanTimeMatchesSimulatorForItsPartition) {
  const auto layers = model(12);
  const PlanOptions options{
      .ranks = 3, .microbatches = {6}, .stages_per_rank = {1, 2}, .recomputation = false};
  for (const Plan& plan : plan_layers(layers, {}, options).plans) {
    if (plan.verdict == PlanVerdict::Impossible || is_auto(plan.schedule)) continue;
    Costs costs;
    for (std::size_t s = 0; s + 1 < plan.first_layer.size(); ++s) {
      const auto from = static_cast<std::size_t>(plan.first_layer[s]),
                 to = static_cast<std::size_t>(plan.first_layer[s + 1]);
      costs.stages.push_back(merge_layers(std::span(layers).subspan(from, to - from)));
    }
    const schedule::Schedule schedule = schedule::make_schedule(
        std::get<schedule::ScheduleKind>(plan.schedule), {3, plan.stages_per_rank, 6});
    const Simulation simulation = simulate(make_program(schedule, schedule::SendMode::Buffered), costs);
    EXPECT_EQ(simulation.step_time, plan.step_time) << to_string(plan.schedule);
    EXPECT_EQ(simulation.peak_memory(), plan.peak_memory) << to_string(plan.schedule);
  }
}

TEST(PlanPlanner, AutoIsNeverSlowerThanNamedSchedules) {
  const PlanResult result = plan_layers(model(16), {}, {.ranks = 4, .microbatches = {8}, .memory_cap = 3000});
  for (const Plan& automatic : result.plans) {
    if (!is_auto(automatic.schedule) || automatic.verdict > PlanVerdict::Slower) continue;
    for (const Plan& plan : result.plans) {
      const bool same =
          plan.stages_per_rank == automatic.stages_per_rank && plan.recompute == automatic.recompute;
      if (!same || plan.verdict > PlanVerdict::Slower) continue;
      EXPECT_LE(automatic.step_time, plan.step_time * (1 + 1e-12)) << to_string(plan.schedule);
    }
  }
}

TEST(PlanPlanner, ChoosesRecomputationIfNothingElseFits) {
  const auto layers = model(8);
  const PlanResult result = plan_layers(layers, {}, {.ranks = 2, .microbatches = {8}, .memory_cap = 760});
  ASSERT_EQ(result.plans.front().verdict, PlanVerdict::Best);
  EXPECT_TRUE(result.plans.front().recompute);
  const PlanResult nothing = plan_layers(layers, {}, {.ranks = 2, .microbatches = {8}, .memory_cap = 300});
  EXPECT_NE(nothing.plans.front().verdict, PlanVerdict::Best);
  EXPECT_FALSE(nothing.schedule);
}

//! The activations of each layer but the last can be recomputed: all but 10 bytes.
std::vector<RecomputableModule> modules_of(const std::vector<Layer>& layers) {
  std::vector<RecomputableModule> modules;
  for (int i = 0; i + 1 < static_cast<int>(layers.size()); ++i) {
    const StageCosts& costs = layers[static_cast<std::size_t>(i)].costs;
    modules.push_back({.name = "m" + std::to_string(i),
                       .parts = {{.layer = i, .bytes = costs.activation_bytes - 10, .time = costs.forward}}});
  }
  return modules;
}

//! The shortest step over all partitions and all numbers of recomputed modules, by trying all; infinity if
//! nothing fits. Memory: that of the simulator and the largest module, which is recomputed in a backward
//! pass.
double best_time_by_brute_force(const std::vector<Layer>& layers,
                                const std::vector<RecomputableModule>& modules,
                                const schedule::Program& program, std::uint64_t cap) {
  double best = std::numeric_limits<double>::infinity();
  const int count = static_cast<int>(layers.size());
  for (std::size_t chosen = 0; chosen <= modules.size(); ++chosen) {
    std::vector<Layer> changed = layers;
    std::uint64_t largest = 0;
    for (std::size_t i = 0; i < chosen; ++i) {
      StageCosts& costs = changed[i].costs;
      costs.input += modules[i].parts[0].time;
      costs.activation_bytes -= modules[i].parts[0].bytes;
      largest = std::max(largest, modules[i].parts[0].bytes);
    }
    for (int a = 1; a < count; ++a) {
      for (int b = a + 1; b < count; ++b) {
        const std::span<const Layer> all(changed);
        const auto part = [&](int from, int to) {
          return merge_layers(
              all.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from)));
        };
        Costs costs;
        costs.stages = {part(0, a), part(a, b), part(b, count)};
        const Simulation result = simulate(program, costs);
        if (result.peak_memory() + largest <= cap) best = std::min(best, result.step_time);
      }
    }
  }
  return best;
}

TEST(PlanPlanner, RecomputesModulesWithShortestStepThatFits) {
  std::vector<Layer> layers = model(8);
  for (Layer& layer : layers) layer.costs.weight_bytes = 0;
  const std::vector<RecomputableModule> modules = modules_of(layers);
  std::set<std::size_t> numbers;
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::GPipe, schedule::ScheduleKind::ZB1P}) {
    const schedule::Program program =
        make_program(make_schedule(kind, {3, 1, 5}), schedule::SendMode::Buffered);
    for (std::uint64_t cap = 500; cap <= 2000; cap += 50) {
      const PlanOptions options{.ranks = 3,
                                .microbatches = {5},
                                .stages_per_rank = {1},
                                .schedules = {kind},
                                .memory_cap = cap,
                                .modules = modules};
      double found = std::numeric_limits<double>::infinity();
      for (const Plan& plan : plan_layers(layers, {}, options).plans) {
        if (plan.recompute || plan.verdict > PlanVerdict::Slower) continue;
        EXPECT_LE(plan.peak_memory, cap);
        if (plan.step_time < found) {
          found = plan.step_time;
          numbers.insert(plan.recomputed_modules.size());
        }
      }
      EXPECT_EQ(found, best_time_by_brute_force(layers, modules, program, cap))
          << to_string(ScheduleChoice(kind)) << " " << cap;
    }
  }
  EXPECT_GE(numbers.size(), 4U);  // none, some of them, and almost all
}

TEST(PlanPlanner, TriesModulesOnlyUnderCapAndWithRecomputation) {
  const auto layers = model(6);
  PlanOptions options{.ranks = 2, .microbatches = {4}, .modules = modules_of(layers)};
  const auto uses_modules = [&] {
    const PlanResult result = plan_layers(layers, {}, options);
    return std::any_of(result.plans.begin(), result.plans.end(),
                       [](const Plan& plan) { return !plan.recomputed_modules.empty(); });
  };
  EXPECT_FALSE(uses_modules());
  options.memory_cap = 700;
  EXPECT_TRUE(uses_modules());
  options.recomputation = false;
  EXPECT_FALSE(uses_modules());
  options.recomputation = true;
  options.modules[0].parts[0].layer = 6;
  EXPECT_ERROR(plan_layers(layers, {}, options), UsageError, "the costs of the module 'm0' are not valid");
}

TEST(PlanPlanner, ReportsDominantReason) {
  const auto layers = model(16);
  const auto reason = [&](const Costs& links, const PlanOptions& options, const std::string& schedule,
                          int stages_per_rank) {
    const PlanResult result = plan_layers(layers, links, options);
    for (const Plan& plan : result.plans) {
      if (to_string(plan.schedule) == schedule && plan.stages_per_rank == stages_per_rank) return plan.why;
    }
    return std::string("no such plan");
  };
  const PlanOptions bubbles{.ranks = 4,
                            .microbatches = {4},
                            .schedules = {schedule::ScheduleKind::GPipe, schedule::ScheduleKind::ZB2P},
                            .recomputation = false};
  EXPECT_THAT(reason({}, bubbles, "GPipe", 1), HasSubstr("bubble"));
  Costs slow;
  slow.link.latency = 5;
  const PlanOptions hops{
      .ranks = 4,
      .microbatches = {16},
      .stages_per_rank = {1, 4},
      .schedules = {schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::Interleaved1F1B},
      .recomputation = false};
  EXPECT_THAT(reason(slow, hops, "Interleaved1F1B", 4), HasSubstr("communication"));
  Costs overhead;
  overhead.overhead = 0.9;
  const PlanOptions counts{.ranks = 4,
                           .microbatches = {64, 1024},
                           .measured_microbatches = 64,
                           .schedules = {schedule::ScheduleKind::OneFOneB},
                           .recomputation = false};
  const PlanResult result = plan_layers(layers, overhead, counts);
  EXPECT_EQ(result.plans.front().microbatches, 64);
  EXPECT_THAT(result.plans.back().why, HasSubstr("overhead of more microbatches"));
}

TEST(PlanPlanner, RejectsInvalidInput) {
  EXPECT_ERROR(plan_layers(model(3), {}, {.ranks = 4, .microbatches = {4}}), UsageError,
               "3 layers cannot fill 4 ranks");
  EXPECT_ERROR(plan_layers(model(8), {}, {.ranks = 4, .microbatches = {}}), UsageError,
               "a plan needs at least one number of microbatches");
  EXPECT_ERROR(plan_stages(Costs::uniform(6), {.ranks = 4, .microbatches = {4}}), UsageError,
               "6 stages cannot be divided evenly among 4 ranks");
}

}  // namespace
}  // namespace penstock::plan
