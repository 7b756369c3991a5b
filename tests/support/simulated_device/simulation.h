// The state of all simulated devices, and the functions that kernels, streams and copies share.
#pragma once

#include "device_blocks.h"
#include "device_memory.h"
#include "pinned_memory.h"
#include "simulated_device.h"
#include "stream_clocks.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

namespace penstock::test::simulated {

struct Simulation {
  explicit Simulation(const Options& chosen);

  const Options options;
  const DeviceMemory memory;

  std::mutex mutex;  //!< of everything below. Destroy no tensor while holding it: tensors lock it too.
  StreamClocks clocks;
  DeviceBlocks blocks;
  PinnedMemory pinned;
  std::vector<Race> races;
  std::vector<HostSync> host_syncs;
  std::atomic<bool> event_waits_order = true;
};

//! The one simulation of the process; it is never destroyed. Throws if `enable` was not called.
Simulation& simulation();
bool is_enabled();
void start_simulation(const Options& options);

//! The device and streams of this thread.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
void set_current_stream(const c10::Stream& stream);

//! Throws libtorch's error for a device that does not exist.
void check_device(c10::DeviceIndex device);

//! A launch on the current stream of a device.
Moment launch(c10::DeviceIndex device);

//! Records that a launch reads or writes the bytes of a tensor, which is on a device or in pinned memory.
//! Strided tensors count from their first to their last byte.
void record_access(const at::Tensor& tensor, bool write, const std::string& operation, Moment moment);
void record_race(Race race);

//! Blocks the host until the work in `clock` is done; counts as a host sync. Later launches of any stream
//! come after it, unless `orders` is false.
void synchronize_host(const VectorClock& clock, c10::DeviceIndex device, const std::string& cause,
                      bool orders = true);
void synchronize_stream(const c10::Stream& stream, const std::string& cause);

//! The host knows that the work in `clock` is done, without having waited for it.
void host_observed(const VectorClock& clock, bool orders = true);

std::string to_string(const c10::Stream& stream);

}  // namespace penstock::test::simulated
