// The simulator: predicts the timeline of a program from its costs, and reports the step time, the bubble,
// the peak memory of each rank and the critical path.
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/schedule/program.h>
#include <penstock/schedule/timeline.h>

#include <cstdint>
#include <vector>

namespace penstock::plan {

//! Time and memory of one rank in a step.
struct RankReport {
  double busy = 0;        //!< time spent in computations
  double first = 0;       //!< start of the first computation
  double last = 0;        //!< end of the last computation
  double bubble = 0;      //!< idle fraction of the step (of the makespan)
  double own_bubble = 0;  //!< idle fraction between the rank's first and last computation
  std::uint64_t peak_memory = 0;
  double peak_at = 0;  //!< when the peak is first reached
};

//! One action of the critical path. Each action on it kept the next one from starting earlier.
struct CriticalAction {
  Rank rank;
  schedule::TimedAction timed;
};

//! The predicted step.
struct Simulation {
  schedule::Timeline timeline;
  double step_time = 0;
  double bubble = 0;      //!< mean of RankReport::bubble over the ranks
  double own_bubble = 0;  //!< mean of RankReport::own_bubble over the ranks
  std::vector<RankReport> ranks;
  std::vector<CriticalAction> critical_path;  //!< ordered by time

  //! The maximum of RankReport::peak_memory over the ranks.
  std::uint64_t peak_memory() const;
};

//! Which optional results to compute.
struct SimulateOptions {
  bool memory_samples = true;  //!< keep the memory of each rank over time, not only the peak
  bool critical_path = true;
};

//! Simulates the program in its send mode. Deterministic, linear in the number of actions. Throws a
//! UsageError if the costs are invalid or do not match the program.
Simulation simulate(const schedule::Program& program, const Costs& costs,
                    const SimulateOptions& options = {});

//! Computes busy time, bubbles and peak memory from a predicted or measured timeline.
std::vector<RankReport> report_ranks(const schedule::Timeline& timeline);

//! How long an action occupies its rank or, for UNSHARD and REDUCE_GRAD, the rank's collectives. Excludes
//! transfers, whose time depends on the link.
double duration_of(const schedule::Action& action, const Costs& costs);

//! A lower bound of the step time for every order of the computations, from the busiest rank and the longest
//! dependency chain of a microbatch.
double lower_bound(const schedule::Placement& placement, int microbatches, const Costs& costs,
                   bool has_backward = true);

}  // namespace penstock::plan
