// Inserts idle slots: aligns lists on a clock of one slot per action; every action follows its dependencies.
#pragma once

#include <penstock/schedule/schedule.h>
#include <penstock/schedule/wiring.h>

#include <vector>

namespace penstock::schedule::generators {

//! Which actions wait for their dependencies.
enum class AlignBy { Forwards, Everything };

struct AlignOptions {
  int microbatches = 0;
  AlignBy by = AlignBy::Everything;
};

//! Returns the lists with idle slots added; keeps existing idle slots. If the lists deadlock, the rest is
//! appended unaligned; the validator rejects them later.
std::vector<ActionList> align(const std::vector<ActionList>& orders, const Wiring& wiring,
                              const AlignOptions& options);

}  // namespace penstock::schedule::generators
