// Reads the statistics of allocators.
#include "runtime/step/allocated_bytes.h"

#include <ATen/DeviceAccelerator.h>
#include <malloc.h>

namespace penstock::runtime {

std::uint64_t allocated_bytes(c10::Device device) {
  if (device.is_cpu()) {
    const auto info = mallinfo2();
    return info.uordblks + info.hblkhd;
  }
  using StatType = c10::CachingDeviceAllocator::StatType;
  const auto stats = at::accelerator::getDeviceStats(device.index());
  return static_cast<std::uint64_t>(
      stats.allocated_bytes[static_cast<std::size_t>(StatType::AGGREGATE)].current);
}

}  // namespace penstock::runtime
