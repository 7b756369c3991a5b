// The allocator that libtorch uses for tensors of the device.
#include "device_allocator.h"

#include "simulation.h"

#include <cstring>

namespace penstock::test::simulated {
namespace {

// NaN in every floating-point type, so that results show the use of memory that was never written.
constexpr int kFreshByte = 0xFF;

class SimulatedAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    const c10::DeviceIndex device = current_device();
    if (size == 0) return {nullptr, c10::Device(c10::kCUDA, device)};
    Simulation& state = simulation();
    const StreamIndex stream = index_of(current_stream(device));
    std::optional<std::size_t> offset;
    {
      const std::lock_guard lock(state.mutex);
      offset = state.blocks.take(device, stream, size);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, offset.has_value(), "CUDA out of memory. Tried to allocate ", size,
                     " bytes on simulated cuda:", static_cast<int>(device), ", which has ",
                     state.memory.bytes_per_device(), " bytes");
    char* const data = state.memory.device_pointer(*offset);
    std::memset(state.memory.writable(data), kFreshByte, size);
    return {data, data, &SimulatedAllocator::release, c10::Device(c10::kCUDA, device)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &SimulatedAllocator::release; }

  void copy_data(void* to, const void* from, std::size_t size) const override {
    const DeviceMemory& memory = simulation().memory;
    std::memcpy(memory.writable(to), memory.writable(from), size);
  }

  bool initialized() override { return is_enabled(); }

  void emptyCache(c10::MempoolId_t) override {
    Simulation& state = simulation();
    const std::lock_guard lock(state.mutex);
    for (c10::DeviceIndex device = 0; device < state.options.devices; ++device)
      state.blocks.empty_cache(device);
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get() == nullptr) return;
    Simulation& state = simulation();
    const std::lock_guard lock(state.mutex);
    state.blocks.at(state.memory.offset_of(data.get())).recorded_streams.push_back(index_of(stream));
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const MemoryUse use = memory_use(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes =
        stats.allocated_bytes[static_cast<std::size_t>(c10::CachingDeviceAllocator::StatType::AGGREGATE)];
    bytes.current = static_cast<std::int64_t>(use.allocated);
    bytes.peak = static_cast<std::int64_t>(use.peak);
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak(device); }

  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::size_t total = simulation().memory.bytes_per_device();
    return {total - memory_use(device).allocated, total};
  }

 private:
  static void release(void* data) {
    Simulation& state = simulation();
    const std::lock_guard lock(state.mutex);
    state.blocks.release(state.memory.offset_of(data));
  }
};

}  // namespace

c10::DeviceAllocator* device_allocator() {
  static auto* const allocator = new SimulatedAllocator;
  return allocator;
}

}  // namespace penstock::test::simulated
