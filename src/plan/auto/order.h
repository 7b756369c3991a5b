// Orders of computations and their quick evaluation, which Auto calls thousands of times. It builds no
// program or timeline, but agrees with the simulator in the buffered mode (a test compares them).
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/schedule/schedule.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace penstock::plan::auto_search {

//! The scheduling problem: a chain of stages on ranks with the costs of all computations.
struct Problem {
  Problem(const schedule::Placement& placement, int microbatches, const Costs& costs,
          std::optional<std::uint64_t> cap);

  struct Hop {
    int link = -1;  //!< index of the ordered pair of ranks; -1 within a rank
    double transfer = 0;
    double occupies = 0;
  };

  const schedule::Placement& placement;
  int ranks, stages, microbatches;
  const Costs& costs;
  std::vector<int> rank_of;
  std::vector<std::vector<int>> stages_of;
  std::vector<double> forward, input, weight, backward;  //!< durations, including recomputation
  std::vector<Hop> hop_up, hop_down;                     //!< from stage s to s+1, from s to s-1
  int links = 0;
  std::vector<std::int64_t> room;  //!< bytes per rank available for activations

  std::size_t at(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(microbatches) +
           static_cast<std::size_t>(microbatch);
  }
  double duration(const schedule::Action& action) const;
  //! Bytes allocated at the start and freed at the end of an action, as in the memory model.
  std::int64_t takes(const schedule::Action& action) const;
  std::int64_t gives(const schedule::Action& action) const;
};

using Order = std::vector<schedule::ActionList>;  //!< one list per rank; only F, I, W and B

//! Start and end of every action, and the action that kept it from starting earlier.
struct Evaluation {
  double makespan = std::numeric_limits<double>::infinity();  //!< infinite if the order cannot finish
  std::vector<std::size_t> offset;  //!< per rank: its first index in the vectors below
  std::vector<double> start, end;
  std::vector<std::int32_t> bound_by;
};

void evaluate(const Problem& problem, const Order& order, Evaluation& result);

//! The peak bytes of activations of a rank with this list; depends only on the order.
std::int64_t peak_activations(const Problem& problem, const schedule::ActionList& list);
//! Whether the activations of the rank fit in its memory.
bool fits(const Problem& problem, const schedule::ActionList& list, int rank);

}  // namespace penstock::plan::auto_search
