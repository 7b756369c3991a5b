// The simulator: a program and its costs give a predicted timeline, and what a person asks of one: how long
// the step takes, how much of it is idle, how full each rank gets and when, and which actions bound the step.
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/schedule/program.h>
#include <penstock/schedule/timeline.h>

#include <cstdint>
#include <vector>

namespace penstock {

//! One rank's share of a step.
struct RankReport {
  double busy = 0;        //!< time spent in computations
  double first = 0;       //!< start of the first computation
  double last = 0;        //!< end of the last one
  double bubble = 0;      //!< idle share of the whole step (of the makespan)
  double own_bubble = 0;  //!< idle share between this rank's first and last computation
  std::uint64_t peak_memory = 0;
  double peak_at = 0;  //!< when the peak is first reached
};

//! What bound the step: from its end back to its beginning, each action the reason why the next could not
//! start earlier.
struct CriticalStep {
  Rank rank;
  TimedAction timed;
};

struct Simulation {
  Timeline timeline;
  double step_time = 0;
  double bubble = 0;      //!< mean over the ranks of their idle share of the step
  double own_bubble = 0;  //!< mean over the ranks of the idle share inside their own span
  std::vector<RankReport> ranks;
  std::vector<CriticalStep> critical_path;  //!< in order of time

  std::uint64_t peak_memory() const;
};

struct SimulateOptions {
  bool memory_samples = true;  //!< keep each rank's memory over time, not only its peak
  bool critical_path = true;
};

//! Sends behave as the program's mode says. Deterministic, and linear in the number of actions. Throws
//! UsageError if the costs do not fit.
Simulation simulate(const Program& program, const Costs& costs, const SimulateOptions& options = {});

//! The report of any timeline, a measured one as well: busy time, both bubbles, and the peaks of its memory
//! samples.
std::vector<RankReport> report_ranks(const Timeline& timeline);

//! How long one action keeps its rank or, for a chore, the rank's collectives; transfers depend on the link.
double duration_of(const Action& action, const Costs& costs);

//! No order of the computations can beat this: the busiest rank, and the longest chain that one microbatch
//! needs.
double lower_bound(const Placement& placement, int microbatches, const Costs& costs,
                   bool has_backward = true);

}  // namespace penstock
