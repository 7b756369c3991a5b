// Counts the allocations of this thread, and lets one of them fail.
#pragma once

namespace penstock::fuzz {

struct Allocations {
  long made = 0;
  long kept = 0;       //!< blocks that were not released
  bool threw = false;  //!< one failed with std::bad_alloc; not one of `new (std::nothrow)`
};

//! Counts from zero. The allocation with this number fails; none if it is negative.
void start_counting(long failing);
Allocations stop_counting();

}  // namespace penstock::fuzz
