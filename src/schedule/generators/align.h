// Idle slots: puts orders on a common clock of one slot an action, so that no action stands before what it
// needs.
#pragma once

#include <penstock/schedule/schedule.h>
#include <penstock/schedule/wiring.h>

#include <vector>

namespace penstock::generators {

//! Which actions wait for what they need.
enum class AlignBy { Forwards, Everything };

struct AlignOptions {
  int microbatches = 0;
  AlignBy by = AlignBy::Everything;
};

//! The same orders with idle slots added. Idle slots that are there already are kept. Orders that can never
//! run are returned as far as they can, then as they are: to refuse them is the validator's business.
std::vector<ActionList> align(const std::vector<ActionList>& orders, const Wiring& wiring,
                              const AlignOptions& options);

}  // namespace penstock::generators
