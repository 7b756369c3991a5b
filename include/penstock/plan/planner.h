// The planner: for every schedule, number of stages per rank and number of microbatches, with and without
// recomputation, it partitions the model and simulates a step. It ranks the plans by predicted time under the
// memory cap and explains why the others lost.
//
// Under a memory cap, it also tries to recompute single modules instead of whole stages: the first ones of a
// given order, as many as give the shortest step.
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/plan/schedule_choice.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/schedule.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::plan {

//! A module of a model given as layers, whose activations can be recomputed.
struct RecomputableModule {
  //! What recomputation saves and costs in a layer, per microbatch.
  struct Part {
    int layer = 0;
    std::uint64_t bytes = 0;  //!< activations that are not kept
    double time = 0;          //!< of the forward pass that the backward pass repeats
  };
  std::string name;
  std::vector<Part> parts{};

  //! The activations that are back in memory while the module is recomputed.
  std::uint64_t bytes() const;
};

//! The candidates that the planner tries.
struct PlanOptions {
  int ranks = 1;
  std::vector<int> microbatches{};  //!< numbers to try; the batch size stays the same
  std::optional<int>
      measured_microbatches;  //!< that the costs refer to; default: the first of `microbatches`
  std::vector<int> stages_per_rank{1, 2, 3, 4};
  std::vector<ScheduleChoice> schedules{};  //!< to try; empty: all with a backward pass, and AutoSchedule
  std::optional<std::uint64_t> memory_cap{};
  bool recomputation = true;  //!< also try recomputation
  //! Under a memory cap, also recompute the first of these modules, as many as needed (plan_layers).
  std::vector<RecomputableModule> modules{};
  schedule::SendMode send_mode = schedule::SendMode::Buffered;
};

//! Breakdown of the step time; the parts add up to it.
struct TimeShares {
  double compute = 0;        //!< mean computation time per rank
  double imbalance = 0;      //!< computation time of the busiest rank above the mean
  double bubble = 0;         //!< idle time of that rank if transfers took no time
  double communication = 0;  //!< additional time due to transfers

  double total() const { return compute + imbalance + bubble + communication; }
};

//! How a plan compares with the others.
enum class PlanVerdict { Best, Slower, DoesNotFit, Impossible };

//! One candidate with its predicted time and memory.
struct Plan {
  ScheduleChoice schedule;
  int stages_per_rank = 1;
  int microbatches = 1;
  bool recompute = false;                         //!< of all stages
  std::vector<std::string> recomputed_modules{};  //!< instead of whole stages
  std::vector<int> first_layer;  //!< per stage, then the number of layers; empty for plan_stages
  double step_time = 0;
  double bubble = 0;              //!< idle fraction of the step
  std::uint64_t peak_memory = 0;  //!< with recomputed modules, includes the largest of them
  TimeShares shares;
  PlanVerdict verdict = PlanVerdict::Impossible;
  std::string why;  //!< why the plan is not the best, or why it is impossible
};

//! All candidates in order of preference.
struct PlanResult {
  std::vector<Plan>
      plans;  //!< plans that fit, by time; then plans that do not fit, by memory; then impossible ones
  std::optional<schedule::Schedule> schedule;  //!< the schedule of the best plan
};

//! Plans for a model given as layers, which is partitioned for every candidate. `links` provides links,
//! overlap and overhead; its stages are ignored.
PlanResult plan_layers(std::span<const Layer> layers, const Costs& links, const PlanOptions& options);
//! Plans for a model that is already split into stages, which determines the number of stages per rank.
PlanResult plan_stages(const Costs& costs, const PlanOptions& options);

}  // namespace penstock::plan
