// Measures actions with the clock of the host or with events.
#include "runtime/step/action_clock.h"

#include "runtime/step/allocated_bytes.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace penstock::runtime {
namespace {

// An event that keeps its time, on the current stream.
c10::Event record_event(c10::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace

void ActionClock::start_step(const std::vector<c10::Device>& devices, bool measure_memory) {
  for (const c10::Device device : devices) {
    if (!measure_memory || device.is_meta()) continue;
    const c10::Device one = device.is_cpu() ? c10::Device(c10::kCPU) : device;
    if (std::find(memory_devices_.begin(), memory_devices_.end(), one) == memory_devices_.end())
      memory_devices_.push_back(one);
  }
  memory_at_start_ = memory_in_use();
  started_ = HostClock::now();
  for (const c10::Device device : devices) {
    if (!device.is_cpu() && !device.is_meta())
      device_started_.try_emplace(device.index(), record_event(device));
  }
}

ActionClock::Mark ActionClock::mark(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return {HostClock::now()};
  return {{}, record_event(device)};
}

void ActionClock::begin(c10::Device device) {
  device_ = device;
  start_ = mark(device);
}

void ActionClock::inputs_arrived(HostClock::duration waited) {
  if (!start_) return;
  if (start_->event) {
    start_ = mark(device_);
  } else {
    start_->host += waited;
  }
}

void ActionClock::end(const schedule::Action& action) {
  // The time is taken first, so that no action includes reading the memory.
  measured_.push_back({action, device_, std::move(*start_), mark(device_), 0});
  measured_.back().memory = memory_in_use();
  start_.reset();
}

std::uint64_t ActionClock::memory_in_use() const {
  std::uint64_t bytes = 0;
  for (const c10::Device device : memory_devices_) bytes += allocated_bytes(device);
  return bytes;
}

double ActionClock::since_start(const Mark& mark, c10::Device device) const {
  if (!mark.event) return std::chrono::duration<double>(mark.host - started_).count();
  return device_started_.at(device.index()).elapsedTime(*mark.event) / 1000;
}

std::vector<schedule::TimedAction> ActionClock::times() {
  // Streams run in order: the last event of each device covers the others.
  std::map<c10::DeviceIndex, const c10::Event*> last;
  for (const Measured& item : measured_) {
    if (item.end.event) last[item.device.index()] = &*item.end.event;
  }
  for (const auto& [device, event] : last) {
    if (!event->query()) event->synchronize();
  }
  std::vector<schedule::TimedAction> times;
  times.reserve(measured_.size());
  for (const Measured& item : measured_)
    times.push_back({item.action, since_start(item.start, item.device), since_start(item.end, item.device)});
  return times;
}

std::vector<schedule::MemorySample> ActionClock::memory() const {
  if (memory_devices_.empty()) return {};
  std::vector<schedule::MemorySample> samples{{0, memory_at_start_}};
  samples.reserve(measured_.size() + 1);
  // Actions of different devices may end in another order than the host launched them.
  for (const Measured& item : measured_)
    samples.push_back({std::max(samples.back().time, since_start(item.end, item.device)), item.memory});
  return samples;
}

}  // namespace penstock::runtime
