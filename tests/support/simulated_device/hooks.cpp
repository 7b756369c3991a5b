// What libtorch asks about CUDA from code that is not CUDA's.
#include "device_allocator.h"
#include "generator.h"
#include "pinned_memory.h"
#include "registration.h"
#include "simulation.h"

#include <ATen/detail/CUDAHooksInterface.h>

namespace penstock::test::simulated {
namespace {

// Before `enable`, there is no device.
class SimulatedHooks final : public at::CUDAHooksInterface {
 public:
  bool isBuilt() const override { return is_enabled(); }
  bool isAvailable() const override { return is_enabled(); }
  bool hasCUDA() const override { return is_enabled(); }
  void init() const override { simulation(); }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    check_device(device);
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return is_enabled() ? simulation().options.devices : c10::DeviceIndex{0};
  }
  int getNumGPUs() const override { return deviceCount(); }
  std::string showConfig() const override { return "  - simulated devices\n"; }

  c10::DeviceIndex current_device() const override { return simulated::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return simulated::current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    check_device(device);
    set_current_device(device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex old = simulated::current_device();
    if (device >= 0) setCurrentDevice(device);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  void deviceSynchronize(c10::DeviceIndex device) const override { synchronize_device(device); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<SimulatedGenerator>(device < 0 ? simulated::current_device() : device);
  }

  c10::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(simulation().memory.contains(data), "the pointer is not in memory of a simulated device");
    return {c10::kCUDA, simulation().memory.device_of(data)};
  }
  bool isPinnedPtr(const void* data) const override {
    if (!is_enabled()) return false;
    const std::lock_guard lock(simulation().mutex);
    return simulation().pinned.find(data) != nullptr;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
};

// libtorch creates the hooks once, possibly long before `enable`. A CUDA build registers hooks of its own.
bool register_hooks() {
  c10::Registry<std::string, std::unique_ptr<at::CUDAHooksInterface>, at::CUDAHooksArgs>& registry =
      *at::CUDAHooksRegistry();
  if (registry.Has("CUDAHooks")) return false;
  registry.Register("CUDAHooks", [](at::CUDAHooksArgs) -> std::unique_ptr<at::CUDAHooksInterface> {
    return std::make_unique<SimulatedHooks>();
  });
  return true;
}
const bool registered = register_hooks();

}  // namespace

bool hooks_are_simulated() {
  return registered && dynamic_cast<const SimulatedHooks*>(&at::detail::getCUDAHooks()) != nullptr;
}

}  // namespace penstock::test::simulated
