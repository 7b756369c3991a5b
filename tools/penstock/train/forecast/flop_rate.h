// The speed of this machine, for predictions of times.
#pragma once

namespace penstock::tool {

//! Floating-point operations per second of a float32 matrix product with this many threads. Takes about 50
//! ms.
double measure_flops(int threads);

}  // namespace penstock::tool
