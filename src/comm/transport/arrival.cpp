// Yields to the thread of the transport; marks receive buffers and polls them.
#include "comm/transport/arrival.h"

#include <sched.h>

#include <atomic>
#include <chrono>

namespace penstock::comm {
namespace {

using Clock = std::chrono::steady_clock;

// As a float, a NaN that no computation produces; as an integer, a rare value. A message that happens to end
// with it is only noticed later.
constexpr std::uint32_t kMark = 0x7fa6d593;

constexpr std::chrono::microseconds kLooking{200};

// The transport's thread usually needs the core for about ten microseconds. If a yield takes longer than this
// limit, other threads compete for the core, and a thread that blocks gets it back sooner than one that
// yields. The next kRest yields are then skipped.
constexpr std::chrono::microseconds kCrowded{300};
constexpr int kRest = 100;
thread_local int rest = 0;

bool resting() {
  if (rest == 0) return false;
  --rest;
  return true;
}

//! Yields the core once and returns the time after it.
Clock::time_point yield_since(Clock::time_point before) {
  sched_yield();
  const auto now = Clock::now();
  if (now - before > kCrowded) rest = kRest;
  return now;
}

}  // namespace

void yield_to_receiver() {
  if (!resting()) yield_since(Clock::now());
}

ArrivalMark::ArrivalMark(const at::Tensor& memory) {
  const std::size_t bytes = memory.nbytes();
  if (!memory.is_cpu() || bytes < sizeof kMark) return;
  auto* const end = static_cast<char*>(memory.data_ptr()) + bytes;
  if (reinterpret_cast<std::uintptr_t>(end) % alignof(std::uint32_t) != 0) return;
  last_ = reinterpret_cast<std::uint32_t*>(end) - 1;
  *last_ = kMark;
}

// The data race with the thread of the transport, which writes this memory, is intended.
__attribute__((no_sanitize("thread"))) bool ArrivalMark::marked() const {
  return std::atomic_ref<std::uint32_t>(*last_).load(std::memory_order_relaxed) == kMark;
}

void ArrivalMark::look() const {
  if (last_ == nullptr || resting()) return;
  const auto limit = Clock::now() + kLooking;
  for (auto now = Clock::now(); marked() && now < limit && rest == 0;) now = yield_since(now);
}

}  // namespace penstock::comm
