// The start and end of actions. On the CPU they are times of the host. On a device, where the host only
// launches work, they are events on the current stream, which are read after the step. On request, also the
// memory in use after each action.
#pragma once

#include <penstock/schedule/timeline.h>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace penstock::runtime {

class ActionClock {
 public:
  using HostClock = std::chrono::steady_clock;

  //! Starts to count. `actions` is the expected number of actions.
  explicit ActionClock(std::size_t actions) { measured_.reserve(actions); }
  void start_step(const std::vector<c10::Device>& devices, bool measure_memory);

  //! An action of a stage on this device starts.
  void begin(c10::Device device);
  //! The values that it waited for have arrived, after this time of the host. The time of a computation
  //! excludes the wait.
  void inputs_arrived(HostClock::duration waited);
  void end(const schedule::Action& action);

  //! The times since the start of the step. On a device, waits until the last action has finished.
  std::vector<schedule::TimedAction> times();
  //! The memory in use on all devices of the rank, from the start of the step; empty unless measured. The
  //! devices must have finished the step, as after `times`.
  std::vector<schedule::MemorySample> memory() const;

 private:
  //! A point in time of the host, or of the current stream of a device.
  struct Mark {
    HostClock::time_point host;
    std::optional<c10::Event> event{};
  };
  struct Measured {
    schedule::Action action;
    c10::Device device;
    Mark start, end;
    std::uint64_t memory;
  };

  std::uint64_t memory_in_use() const;
  static Mark mark(c10::Device device);
  double since_start(const Mark& mark, c10::Device device) const;

  HostClock::time_point started_;
  std::map<c10::DeviceIndex, c10::Event> device_started_;
  std::vector<c10::Device> memory_devices_;  // whose memory is measured; one entry each
  std::uint64_t memory_at_start_ = 0;
  c10::Device device_ = c10::kCPU;  // of the running action
  std::optional<Mark> start_;
  std::vector<Measured> measured_;
};

}  // namespace penstock::runtime
