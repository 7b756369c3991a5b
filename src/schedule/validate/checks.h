// The validator's parts. Each looks at all lists and adds what it finds.
#pragma once

#include "schedule/validate/findings.h"

#include <penstock/schedule/dependencies.h>
#include <penstock/schedule/validate.h>

#include <cstdint>
#include <vector>

namespace penstock {

//! What is to be proven, in either form.
struct Subject {
  Topology topology;
  const std::vector<ActionList>& ranks;
  bool training;  //!< some action is a backward, so every microbatch of every stage needs one

  std::size_t rank_of(StageId stage) const {
    return static_cast<std::size_t>(topology.placement.rank_of(stage).value);
  }
};

//! Which facts some action yields; filled by `check_lists`, used to tell "too late" from "never".
using FactTable = std::vector<std::uint8_t>;

//! Walks each rank's list: places, counts, order within the rank, sharding, what is in flight. False if some
//! action names a stage, microbatch or edge that does not exist, so that the later checks cannot look.
bool check_lists(const Subject& subject, const FactIndex& index, FactTable& yielded, Verdict& verdict,
                 Findings& findings);

//! Every microbatch through every stage, and every transfer with both its ends.
void check_complete(const Subject& subject, const FactIndex& index, const FactTable& yielded,
                    Findings& findings);

//! Whether both ranks of each pair list its transfers in the same order.
void check_pair_order(const Subject& subject, Findings& findings);

//! Runs the lists; what cannot go on is shown as the cycle of who waits for whom.
void check_deadlock(const Subject& subject, const FactIndex& index, const FactTable& yielded, SendMode mode,
                    Findings& findings);

}  // namespace penstock
