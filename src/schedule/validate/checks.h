// The checks of the validator. Each inspects all lists and adds its findings.
#pragma once

#include "schedule/dependencies.h"
#include "schedule/validate/findings.h"

#include <penstock/schedule/validate.h>

#include <cstdint>
#include <vector>

namespace penstock::schedule {

//! The lists to validate, at either level.
struct Subject {
  ActionContext context;
  const std::vector<ActionList>& ranks;
  bool training;  //!< some action is a backward pass, so every stage needs one per microbatch

  std::size_t rank_of(StageId stage) const { return context.placement.rank_of(stage).index(); }
};

//! The facts that some action yields. `check_lists` fills it; later checks use it to tell "too late" from
//! "never".
using FactTable = std::vector<std::uint8_t>;

//! Checks each list: placement, counts, order within the rank, sharding, microbatches in flight. Returns
//! false if an action names a stage, microbatch or edge that does not exist; later checks cannot run then.
bool check_lists(const Subject& subject, const FactIndex& index, FactTable& yielded, Verdict& verdict,
                 Findings& findings);

//! Checks that every microbatch passes through every stage, and that every transfer has both ends.
void check_complete(const Subject& subject, const FactIndex& index, const FactTable& yielded,
                    Findings& findings);

//! Checks that both ranks of each pair have the same transfer order.
void check_pair_order(const Subject& subject, Findings& findings);

//! Runs the lists and reports a deadlock as the cycle of ranks that wait for each other.
void check_deadlock(const Subject& subject, const FactIndex& index, const FactTable& yielded, SendMode mode,
                    Findings& findings);

}  // namespace penstock::schedule
