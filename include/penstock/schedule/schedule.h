// A schedule: what each rank computes, in order, with idle slots where a diagram would show a gap. Generators
// make it, lowering (lower.h) turns it into a program.
#pragma once

#include <penstock/schedule/action.h>
#include <penstock/schedule/placement.h>

#include <cstddef>
#include <string>
#include <vector>

namespace penstock {

//! A rank's actions in order.
using ActionList = std::vector<Action>;

//! Computations only: F, B, I, W, overlaps and idle slots. Plain data; `validate` (validate.h) judges it.
struct Schedule {
  std::string name;     //!< of its generator or file; may be empty
  Placement placement;  //!< which rank holds which stage
  int microbatches = 0;
  std::vector<ActionList> ranks;  //!< one list a rank

  int stages() const { return placement.stages(); }
  const ActionList& of(Rank rank) const { return ranks[static_cast<std::size_t>(rank.value)]; }

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

//! The number of slots of the longest rank.
std::size_t slot_count(const std::vector<ActionList>& ranks);
//! The number of actions, idle slots not counted.
std::size_t action_count(const std::vector<ActionList>& ranks);
//! Whether any action is a B, an I or a W.
bool has_backward(const std::vector<ActionList>& ranks);

}  // namespace penstock
