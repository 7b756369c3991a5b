// Counts the allocations of this thread and can make one of them fail.
#pragma once

namespace penstock::fuzz {

struct Allocations {
  long made = 0;
  long kept = 0;       //!< blocks not released
  bool threw = false;  //!< an allocation failed with std::bad_alloc (`new (std::nothrow)` does not count)
};

//! Restarts the count. The allocation with this number fails; none if it is negative.
void start_counting(long failing);
Allocations stop_counting();

}  // namespace penstock::fuzz
