// The planner: cuts a model for every schedule, number of stages a rank, number of microbatches, with and
// without recomputation, simulates each, and ranks them by predicted time under the memory cap, with why the
// others lost.
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/schedule.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

struct PlanOptions {
  int ranks = 1;
  std::vector<int> microbatches;  //!< counts to try; the batch is the same, so more of them are smaller
  int measured_microbatches = 0;  //!< the count that the costs are for; 0: the first of `microbatches`
  std::vector<int> stages_per_rank{1, 2, 3, 4};
  std::vector<std::string> schedules;  //!< names to try; empty: all, and Auto
  std::optional<std::uint64_t> memory_cap;
  bool recomputation = true;  //!< try that too
  SendMode mode = SendMode::Buffered;
};

//! Where the time of a step goes; the parts add up to it.
struct TimeShares {
  double compute = 0;        //!< mean over the ranks of their computations
  double imbalance = 0;      //!< what the busiest rank has more than the mean
  double bubble = 0;         //!< what that rank waits, were transfers free
  double communication = 0;  //!< what transfers add

  double total() const { return compute + imbalance + bubble + communication; }
};

enum class PlanVerdict { Best, Slower, DoesNotFit, Impossible };

struct Plan {
  std::string schedule;
  int stages_per_rank = 1;
  int microbatches = 1;
  bool recompute = false;
  std::vector<int>
      first_layer;  //!< of each stage, and the number of layers; empty where the model came in stages
  double step_time = 0;
  double bubble = 0;  //!< idle share of the step
  std::uint64_t peak_memory = 0;
  TimeShares shares;
  PlanVerdict verdict = PlanVerdict::Impossible;
  std::string why;  //!< why it is not the best; of an impossible one, why not at all
};

struct PlanResult {
  std::vector<Plan>
      plans;  //!< those that fit by time, then those that do not by memory, then the impossible ones
  std::optional<Schedule> schedule;  //!< of the best
};

//! A model in layers, cut anew for every candidate. `links` gives the links, the overlap and the overhead;
//! its stages are not looked at.
PlanResult plan_layers(std::span<const Layer> layers, const Costs& links, const PlanOptions& options);
//! A model that comes in stages: their number, divided by the ranks, is the only number of stages a rank.
PlanResult plan_stages(const Costs& costs, const PlanOptions& options);

}  // namespace penstock
