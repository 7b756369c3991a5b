// Pinned memory of the host, and the copies from and to it that run while the host continues.
#pragma once

#include "access_history.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <map>
#include <string>
#include <vector>

namespace penstock::test::simulated {

//! A copy that the host has not waited for.
struct PendingCopy {
  at::Tensor host;     //!< the tensor in pinned memory; keeps the memory alive, as libtorch's allocator does
  at::Tensor content;  //!< what the copy writes to `host`, or what it read from there
  bool to_host = false;
  Moment moment;
};

//! Which host memory is pinned, and which copies use it. The caller locks.
class PinnedMemory {
 public:
  void add(const void* data, std::size_t size);
  void remove(const void* data) { blocks_.erase(static_cast<const char*>(data)); }
  //! The history of the pinned block that contains the address, or null.
  AccessHistory* find(const void* data);

  void start(PendingCopy copy) { pending_.push_back(std::move(copy)); }
  //! Removes the copies that `done` covers.
  std::vector<PendingCopy> take_done(const VectorClock& done);
  //! Removes the copies that `done` covers and that use memory of `host`.
  std::vector<PendingCopy> take_done(const VectorClock& done, const at::Tensor& host);

 private:
  struct Pinned {
    std::size_t size = 0;
    AccessHistory history;
  };
  std::map<const char*, Pinned> blocks_;
  std::vector<PendingCopy> pending_;
};

//! Ends a copy. Bytes for the host arrive only now, so a host that reads too early sees NaN. A source that
//! the host changed meanwhile is a race. Call it without the lock.
void finish(const PendingCopy& copy);

c10::Allocator* pinned_allocator();

}  // namespace penstock::test::simulated
