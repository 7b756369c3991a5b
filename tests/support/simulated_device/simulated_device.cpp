// Registers the simulated devices with libtorch, and reports what they recorded.
#include "simulated_device.h"

#include "device_allocator.h"
#include "registration.h"
#include "simulation.h"

#include <mutex>

namespace penstock::test::simulated {

bool available() {
  return hooks_are_simulated();
}

void enable(const Options& options) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (is_enabled()) {
    const Options& current = simulation().options;
    TORCH_CHECK(current.devices == options.devices && current.bytes_per_device == options.bytes_per_device,
                "the simulated devices are already enabled, with other options");
    return;
  }
  TORCH_CHECK(available(), "simulated devices need a CPU build of libtorch");
  TORCH_CHECK(options.devices > 0, "the number of simulated devices must be positive");
  register_kernels();
  start_simulation(options);
  report_host_access(simulation().memory);
  register_guard();
  c10::SetAllocator(c10::kCUDA, device_allocator());
}

std::vector<Race> races() {
  const std::lock_guard lock(simulation().mutex);
  return simulation().races;
}

std::vector<HostSync> host_syncs() {
  const std::lock_guard lock(simulation().mutex);
  return simulation().host_syncs;
}

UnorderedEventWaits::UnorderedEventWaits() {
  simulation().event_waits_order = false;
}

UnorderedEventWaits::~UnorderedEventWaits() {
  simulation().event_waits_order = true;
}

void clear_records() {
  const std::lock_guard lock(simulation().mutex);
  simulation().races.clear();
  simulation().host_syncs.clear();
}

MemoryUse memory_use(c10::DeviceIndex device) {
  check_device(device);
  const std::lock_guard lock(simulation().mutex);
  return simulation().blocks.use(device);
}

void reset_peak(c10::DeviceIndex device) {
  check_device(device);
  const std::lock_guard lock(simulation().mutex);
  simulation().blocks.reset_peak(device);
}

}  // namespace penstock::test::simulated
