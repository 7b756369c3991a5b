// The memory in use, as the allocators of devices and of the host count it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace penstock::runtime {

//! Returns the bytes that are allocated now: by tensors of the device, or on the heap of this process for the
//! CPU. Does not wait for a device: its allocator counts in the order in which the host launches work.
std::uint64_t allocated_bytes(c10::Device device);

}  // namespace penstock::runtime
