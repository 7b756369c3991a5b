// Orders of computations and their quick evaluation: what Auto's search asks thousands of times. It agrees
// with the simulator in the buffered mode (a test compares them), but builds no program and no timeline.
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/schedule/schedule.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace penstock::auto_search {

//! The problem: a chain of stages on ranks, with what every computation costs.
struct Problem {
  Problem(const Placement& placement, int microbatches, const Costs& costs, std::optional<std::uint64_t> cap);

  struct Hop {
    int link = -1;  //!< number of the ordered pair of ranks; -1 within a rank
    double transfer = 0;
    double occupies = 0;
  };

  const Placement& placement;
  int ranks, stages, microbatches;
  const Costs& costs;
  std::vector<int> rank_of;
  std::vector<std::vector<int>> stages_of;
  std::vector<double> forward, input, weight, backward;  //!< durations, recomputation included
  std::vector<Hop> hop_up, hop_down;                     //!< from stage s to s+1, from s to s-1
  int links = 0;
  std::vector<std::int64_t> room;  //!< bytes of each rank that activations may use

  std::size_t at(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(microbatches) +
           static_cast<std::size_t>(microbatch);
  }
  double duration(const Action& action) const;
  //! Bytes taken at the action's start, and given back at its end (as the memory model has it).
  std::int64_t takes(const Action& action) const;
  std::int64_t gives(const Action& action) const;
};

using Order = std::vector<ActionList>;  //!< one list a rank; F, I, W and B only

//! When everything ran, and why no earlier.
struct Evaluation {
  double makespan = std::numeric_limits<double>::infinity();  //!< infinite: the order can never finish
  std::vector<std::size_t> offset;                            //!< a rank's first entry in what follows
  std::vector<double> start, end;
  std::vector<std::int32_t> bound_by;
};

void evaluate(const Problem& problem, const Order& order, Evaluation& result);

//! The most bytes of activations that a rank with this list holds; depends on the order alone.
std::int64_t peak_activations(const Problem& problem, const ActionList& list);
//! Whether the rank's activations stay within its room.
bool fits(const Problem& problem, const ActionList& list, int rank);

}  // namespace penstock::auto_search
