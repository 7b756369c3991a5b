// Current devices, streams and events, behind libtorch's generic interface.
#include "registration.h"
#include "simulation.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>

namespace penstock::test::simulated {
namespace {

using WallClock = std::chrono::steady_clock;

struct SimulatedEvent {
  VectorClock clock;
  WallClock::time_point time;
  c10::DeviceIndex device = 0;
  bool queried = false;
};

SimulatedEvent& event_of(void* event) {
  return *static_cast<SimulatedEvent*>(event);
}

// Work that the host has not waited for is reported as unfinished by the first query, and as finished by the
// next. This runs both branches of code that polls.
bool query(const VectorClock& clock, bool queried_before) {
  Simulation& state = simulation();
  {
    const std::lock_guard lock(state.mutex);
    if (state.clocks.host().covers(clock)) return true;
  }
  if (queried_before) host_observed(clock);
  return queried_before;
}

class SimulatedGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }

  c10::Device getDevice() const override { return {c10::kCUDA, current_device()}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old = getDevice();
    setDevice(device);
    return old;
  }
  void setDevice(c10::Device device) const override {
    if (device.index() < 0) return;
    check_device(device.index());
    set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return is_enabled() ? simulation().options.devices : c10::DeviceIndex{0};
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(resolve(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<c10::StreamId> next{0};
    return stream(device, 1 + next++ % (kStreamsPerDevice - 1));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::Stream old = current_stream(next.device_index());
    set_current_stream(next);
    return old;
  }
  bool queryStream(const c10::Stream& queried) const override {
    static thread_local VectorClock last_query;
    VectorClock clock;
    {
      Simulation& state = simulation();
      const std::lock_guard lock(state.mutex);
      clock = state.clocks.of(index_of(queried));
    }
    const bool queried_before = last_query.covers(clock);
    last_query.merge(clock);
    return query(clock, queried_before);
  }
  void synchronizeStream(const c10::Stream& waited) const override { synchronize_stream(waited, "stream"); }
  void synchronizeDevice(c10::DeviceIndex device) const override { synchronize_device(device); }

  void record(void** event, const c10::Stream& recorded, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new SimulatedEvent;
    SimulatedEvent& target = event_of(*event);
    target.time = WallClock::now();
    target.device = recorded.device_index();
    target.queried = false;
    Simulation& state = simulation();
    const std::lock_guard lock(state.mutex);
    state.clocks.launch(index_of(recorded));
    target.clock = state.clocks.of(index_of(recorded));
  }
  void block(void* event, const c10::Stream& waiting) const override {
    if (event == nullptr) return;
    Simulation& state = simulation();
    const std::lock_guard lock(state.mutex);
    state.clocks.stream_wait(index_of(waiting), event_of(event).clock);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    return query(event_of(event).clock, std::exchange(event_of(event).queried, true));
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    synchronize_host(event_of(event).clock, event_of(event).device, "event", simulation().event_waits_order);
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(event_of(end).time - event_of(start).time).count();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<SimulatedEvent*>(event);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& used) const override {
    record_data_on_stream(data, used);
  }

 private:
  c10::DeviceIndex resolve(c10::Device device) const {
    if (device.index() < 0) return current_device();
    check_device(device.index());
    return device.index();
  }
  c10::Stream stream(c10::Device device, c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, resolve(device)), id);
  }
};

}  // namespace

void synchronize_device(c10::DeviceIndex device) {
  Simulation& state = simulation();
  const c10::DeviceIndex waited = device < 0 ? current_device() : device;
  VectorClock clock;
  {
    const std::lock_guard lock(state.mutex);
    clock = state.clocks.of_device(waited);
  }
  synchronize_host(clock, waited, "device");
}

void register_guard() {
  const c10::impl::DeviceGuardImplRegistrar registrar(c10::kCUDA, new SimulatedGuard);
}

}  // namespace penstock::test::simulated
