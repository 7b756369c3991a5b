// Measures a matrix product.
#include "train/forecast/flop_rate.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace penstock::tool {

double measure_flops(c10::Device device, int threads) {
  using SteadyClock = std::chrono::steady_clock;
  const std::int64_t size = device.is_cpu() ? 256 : 2048;  // large enough to occupy the device
  const double operations = 2.0 * static_cast<double>(size * size * size);
  constexpr std::chrono::milliseconds duration(50);
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  const at::Tensor matrix = at::ones({size, size}, device);
  const auto multiply = [&] {
    at::mm(matrix, matrix);
    if (!device.is_cpu()) at::accelerator::synchronizeDevice(matrix.device().index());
  };
  multiply();  // starts threads and allocates buffers
  // The fastest product: other processes disturb it the least.
  double seconds = 1;
  const SteadyClock::time_point start = SteadyClock::now();
  for (SteadyClock::time_point now = start; now - start < duration;) {
    multiply();
    const SteadyClock::time_point end = SteadyClock::now();
    seconds = std::min(seconds, std::chrono::duration<double>(end - now).count());
    now = end;
  }
  at::set_num_threads(before);
  return operations / seconds;
}

}  // namespace penstock::tool
