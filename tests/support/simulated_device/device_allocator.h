// The allocator that libtorch uses for tensors of the device.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace penstock::test::simulated {

//! Allocates on the current device, for the current stream. New memory holds NaN.
c10::DeviceAllocator* device_allocator();

}  // namespace penstock::test::simulated
