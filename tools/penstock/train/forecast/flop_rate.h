// The speed of this machine, for predictions of times.
#pragma once

#include <c10/core/Device.h>

namespace penstock::tool {

//! Floating-point operations per second of a float32 matrix product on the device, on a CPU with this many
//! threads. Takes about 50 ms.
double measure_flops(c10::Device device, int threads);

}  // namespace penstock::tool
