// Pinned memory of the host, and the copies from and to it.
#include "pinned_memory.h"

#include "host_alias.h"
#include "simulation.h"
#include "support/same_bits.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace penstock::test::simulated {
namespace {

constexpr std::size_t kPinnedAlignment = 64;

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    const std::size_t rounded = (std::max<std::size_t>(size, 1) + kPinnedAlignment - 1) / kPinnedAlignment;
    void* const data = std::aligned_alloc(kPinnedAlignment, rounded * kPinnedAlignment);
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "no pinned memory of ", size, " bytes");
    Simulation& state = simulation();
    const std::lock_guard lock(state.mutex);
    state.pinned.add(data, rounded * kPinnedAlignment);
    return {data, data, &PinnedAllocator::release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedAllocator::release; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    default_copy_data(to, from, size);
  }

 private:
  static void release(void* data) {
    {
      Simulation& state = simulation();
      const std::lock_guard lock(state.mutex);
      state.pinned.remove(data);
    }
    std::free(data);  // NOLINT(cppcoreguidelines-no-malloc)
  }
};

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().data() == b.storage().data();
}

std::vector<PendingCopy> take_if(std::vector<PendingCopy>& copies, const auto& condition) {
  const auto rest = std::stable_partition(copies.begin(), copies.end(),
                                          [&](const PendingCopy& copy) { return !condition(copy); });
  std::vector<PendingCopy> taken(std::make_move_iterator(rest), std::make_move_iterator(copies.end()));
  copies.erase(rest, copies.end());
  return taken;
}

}  // namespace

void PinnedMemory::add(const void* data, std::size_t size) {
  blocks_[static_cast<const char*>(data)] = {size, {}};
}

AccessHistory* PinnedMemory::find(const void* data) {
  const auto* address = static_cast<const char*>(data);
  const auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) return nullptr;
  auto& [start, block] = *std::prev(next);
  return address < start + block.size ? &block.history : nullptr;
}

std::vector<PendingCopy> PinnedMemory::take_done(const VectorClock& done) {
  return take_if(pending_, [&](const PendingCopy& copy) { return done.covers(copy.moment); });
}

std::vector<PendingCopy> PinnedMemory::take_done(const VectorClock& done, const at::Tensor& host) {
  return take_if(pending_, [&](const PendingCopy& copy) {
    return done.covers(copy.moment) && share_memory(copy.host, host);
  });
}

void finish(const PendingCopy& copy) {
  const KernelScope scope;
  if (copy.to_host) {
    copy.host.copy_(copy.content);
  } else if (!same_bits(copy.host, copy.content)) {
    record_race({"write by the host", "copy_",
                 "the host changed pinned memory that a non-blocking copy on " +
                     to_string(stream_at(copy.moment.stream)) + " may still read"});
  }
}

c10::Allocator* pinned_allocator() {
  static auto* const allocator = new PinnedAllocator;
  return allocator;
}

}  // namespace penstock::test::simulated
