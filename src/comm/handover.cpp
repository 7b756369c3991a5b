// Gives way to the transport's thread; marks memory, and looks at it.
#include "comm/handover.h"

#include <sched.h>

#include <atomic>
#include <chrono>

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

// A NaN that nobody computes, an integer that few use. A message that ends with it is only noticed later.
constexpr std::uint32_t kMark = 0x7fa6d593;

constexpr std::chrono::microseconds kLooking{200};

// The transport's thread gives a core back after some ten microseconds. If it takes this long, others want it
// too: then a thread that blocks gets it back sooner than one that yields, and the next times are left out.
constexpr std::chrono::microseconds kCrowded{300};
constexpr int kRest = 100;
thread_local int rest = 0;

bool resting() {
  if (rest == 0) return false;
  --rest;
  return true;
}

//! When it has the core again.
Clock::time_point yield_since(Clock::time_point before) {
  sched_yield();
  const auto now = Clock::now();
  if (now - before > kCrowded) rest = kRest;
  return now;
}

}  // namespace

void give_way() {
  if (!resting()) yield_since(Clock::now());
}

Arrival::Arrival(const at::Tensor& memory) {
  const std::size_t bytes = memory.nbytes();
  if (!memory.is_cpu() || bytes < sizeof kMark) return;
  auto* const end = static_cast<char*>(memory.data_ptr()) + bytes;
  if (reinterpret_cast<std::uintptr_t>(end) % alignof(std::uint32_t) != 0) return;
  last_ = reinterpret_cast<std::uint32_t*>(end) - 1;
  *last_ = kMark;
}

// The transport's thread writes there meanwhile, and is meant to.
__attribute__((no_sanitize("thread"))) bool Arrival::marked() const {
  return std::atomic_ref<std::uint32_t>(*last_).load(std::memory_order_relaxed) == kMark;
}

void Arrival::look() const {
  if (last_ == nullptr || resting()) return;
  const auto limit = Clock::now() + kLooking;
  for (auto now = Clock::now(); marked() && now < limit && rest == 0;) now = yield_since(now);
}

}  // namespace penstock
