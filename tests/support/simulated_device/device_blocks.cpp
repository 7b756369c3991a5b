// The blocks of device memory.
#include "device_blocks.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace penstock::test::simulated {
namespace {

constexpr std::size_t kBlockAlignment = 512;
// The pages of larger free blocks are returned to the system.
constexpr std::size_t kKeptBlock = std::size_t{1} << 20U;

}  // namespace

DeviceBlocks::DeviceBlocks(const DeviceMemory& memory, c10::DeviceIndex devices)
    : memory_(memory), unused_(static_cast<std::size_t>(devices)), use_(static_cast<std::size_t>(devices)) {
  for (std::size_t device = 0; device < unused_.size(); ++device)
    unused_[device][device * memory.bytes_per_device()] = memory.bytes_per_device();
}

c10::DeviceIndex DeviceBlocks::device_of(std::size_t offset) const {
  return static_cast<c10::DeviceIndex>(offset / memory_.bytes_per_device());
}

std::optional<std::size_t> DeviceBlocks::take_cached(StreamIndex stream, std::size_t size) {
  auto& candidates = free_[stream];
  const auto best = candidates.lower_bound({size, 0});
  if (best == candidates.end() || best->first > 2 * size) return std::nullopt;
  const std::size_t offset = best->second;
  candidates.erase(best);
  return offset;
}

std::optional<std::size_t> DeviceBlocks::take_new(c10::DeviceIndex device, std::size_t size) {
  auto& unused = unused_[static_cast<std::size_t>(device)];
  const auto range =
      std::find_if(unused.begin(), unused.end(), [&](const auto& free) { return free.second >= size; });
  if (range == unused.end()) return std::nullopt;
  const auto [offset, available] = *range;
  unused.erase(range);
  if (available > size) unused[offset + size] = available - size;
  return offset;
}

std::optional<std::size_t> DeviceBlocks::take(c10::DeviceIndex device, StreamIndex stream, std::size_t size) {
  size = (size + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  std::optional<std::size_t> offset = take_cached(stream, size);
  if (!offset) {
    offset = take_new(device, size);
    if (!offset) {
      empty_cache(device);
      offset = take_new(device, size);
    }
    if (!offset) return std::nullopt;
    blocks_[*offset] = {size, stream, size, {}, {}};
  }
  Block& block = blocks_.at(*offset);
  block.used = size;
  MemoryUse& use = use_[static_cast<std::size_t>(device)];
  use.allocated += size;
  use.peak = std::max(use.peak, use.allocated);
  return offset;
}

void DeviceBlocks::release(std::size_t offset) {
  Block& block = blocks_.at(offset);
  block.history.on_free(block.recorded_streams);
  block.recorded_streams.clear();
  use_[static_cast<std::size_t>(device_of(offset))].allocated -= std::exchange(block.used, 0);
  free_[block.stream].emplace(block.size, offset);
  if (block.size > kKeptBlock) memory_.discard(offset, block.size);
}

Block& DeviceBlocks::at(std::size_t offset) {
  auto next = blocks_.upper_bound(offset);
  TORCH_INTERNAL_ASSERT(next != blocks_.begin(), "no block at this offset");
  auto& [start, block] = *std::prev(next);
  TORCH_INTERNAL_ASSERT(offset < start + block.used, "no block in use at this offset");
  return block;
}

void DeviceBlocks::empty_cache(c10::DeviceIndex device) {
  for (auto& [stream, candidates] : free_) {
    if (stream_at(stream).device_index() != device) continue;
    for (const auto& [size, offset] : candidates) {
      memory_.discard(offset, size);
      blocks_.erase(offset);
      give_back(offset, size);
    }
    candidates.clear();
  }
}

void DeviceBlocks::give_back(std::size_t offset, std::size_t size) {
  auto& unused = unused_[static_cast<std::size_t>(device_of(offset))];
  const auto next = unused.lower_bound(offset);
  if (next != unused.end() && offset + size == next->first) {
    size += next->second;
    unused.erase(next);
  }
  const auto after = unused.lower_bound(offset);
  if (after != unused.begin()) {
    auto& [start, length] = *std::prev(after);
    if (start + length == offset) {
      length += size;
      return;
    }
  }
  unused[offset] = size;
}

void DeviceBlocks::reset_peak(c10::DeviceIndex device) {
  MemoryUse& use = use_[static_cast<std::size_t>(device)];
  use.peak = use.allocated;
}

}  // namespace penstock::test::simulated
