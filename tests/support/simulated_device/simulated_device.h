// A simulated `cuda:N` for tests on a CPU build of libtorch. Tensors of the device have memory that the host
// cannot access, operators run on the CPU, and the order of streams is checked with vector clocks.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace penstock::test::simulated {

struct Options {
  c10::DeviceIndex devices = 4;
  //! Memory of each device. Pages that no tensor used cost nothing.
  std::size_t bytes_per_device = std::size_t{4} << 30U;
};

//! False on a CUDA build of libtorch, which has kernels of its own.
bool available();

//! Makes the devices available to libtorch, for the rest of the process. Call it before the first backward
//! pass: autograd then starts its device threads. Later calls must pass the same options.
void enable(const Options& options = {});

//! Two accesses to the same bytes, at least one of them a write, on streams without a wait between them.
struct Race {
  std::string operation, earlier_operation;
  std::string message;
};
std::vector<Race> races();

//! A call that blocked the host until a device finished its work.
struct HostSync {
  c10::DeviceIndex device;
  std::thread::id thread;
  //! The operator, or "stream", "event" or "device" for explicit calls.
  std::string cause;
};
std::vector<HostSync> host_syncs();

//! While it exists, a host wait for an event does not order later launches. All threads share one clock, so
//! the wait of a background thread otherwise hides that a stream does not wait.
class UnorderedEventWaits {
 public:
  UnorderedEventWaits();
  ~UnorderedEventWaits();
  UnorderedEventWaits(const UnorderedEventWaits&) = delete;
  UnorderedEventWaits& operator=(const UnorderedEventWaits&) = delete;
};

//! Forgets races and host syncs.
void clear_records();

//! Bytes of live tensors, each rounded up to 512 as in libtorch's CUDA allocator. `at::accelerator` has the
//! same numbers.
struct MemoryUse {
  std::size_t allocated = 0, peak = 0;
};
MemoryUse memory_use(c10::DeviceIndex device);

//! Lets the peak start again from the current use.
void reset_peak(c10::DeviceIndex device);

}  // namespace penstock::test::simulated
