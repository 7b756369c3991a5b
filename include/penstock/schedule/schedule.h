// A schedule: the computations of each rank in order, with idle slots where a diagram shows a gap. Generators
// create schedules; lowering (lower.h) turns a schedule into a draft, and validation a draft into a program.
#pragma once

#include <penstock/schedule/action.h>
#include <penstock/schedule/stage_placement.h>

#include <cstddef>
#include <string>
#include <vector>

namespace penstock::schedule {

//! A rank's actions in order.
using ActionList = std::vector<Action>;

//! Plain data: computations (F, B, I, W, overlaps) and idle slots. `validate` (validate.h) checks it.
struct Schedule {
  std::string name;     //!< name of the generator or file; may be empty
  Placement placement;  //!< which rank runs which stage
  int microbatches = 0;
  std::vector<ActionList> ranks;  //!< one list per rank

  int num_stages() const { return placement.num_stages(); }
  //! The list of a rank.
  const ActionList& of(Rank rank) const { return ranks.at(rank.index()); }

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

//! The number of slots of the longest list.
std::size_t slot_count(const std::vector<ActionList>& ranks);
//! The number of actions without idle slots.
std::size_t action_count(const std::vector<ActionList>& ranks);
//! Whether any action is a B, I, W or overlap.
bool has_backward(const std::vector<ActionList>& ranks);

}  // namespace penstock::schedule
