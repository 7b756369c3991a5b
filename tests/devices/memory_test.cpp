// Memory of simulated devices: copies, faults, statistics.
#include "simulated_device_test.h"
#include "support/same_bits.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>

#include <csignal>

namespace penstock::test {
namespace {

using simulated::memory_use;

class DevicesMemory : public SimulatedDeviceTest {};

TEST_F(DevicesMemory, TensorsMoveThereAndBack) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kBool}) {
    const at::Tensor host = (torch::randn({5, 7}) * 9).to(dtype).t();
    const at::Tensor device = host.to(kCuda1);
    EXPECT_EQ(device.device(), kCuda1);
    EXPECT_EQ(device.strides(), host.strides());
    const at::Tensor other = device.to(kCuda0);
    EXPECT_EQ(other.device(), kCuda0);
    EXPECT_TRUE(same_bits(other.cpu(), host));
    EXPECT_TRUE(same_bits(device.to(at::kDouble).cpu(), host.to(at::kDouble)));
  }
}

TEST_F(DevicesMemory, DeviceWithoutIndexIsCurrentDevice) {
  EXPECT_EQ(torch::ones({2}, at::kCUDA).device(), kCuda0);
  const c10::DeviceGuard guard(kCuda1);
  EXPECT_EQ(torch::ones({2}, at::kCUDA).device(), kCuda1);
  EXPECT_EQ(torch::empty({2}, kCuda0).device(), kCuda0);
}

TEST_F(DevicesMemory, LibtorchSeesDevices) {
  EXPECT_TRUE(torch::hasCUDA());
  EXPECT_EQ(at::accelerator::getAccelerator(), at::kCUDA);
  EXPECT_EQ(at::accelerator::deviceCount(), 4);
  EXPECT_THROW(torch::ones({2}, c10::Device(c10::kCUDA, 4)), c10::Error);
  EXPECT_THROW(at::accelerator::setDeviceIndex(4), c10::Error);
  EXPECT_THROW(simulated::enable({.devices = 2}), c10::Error);
}

using DevicesMemoryDeathTest = DevicesMemory;

TEST_F(DevicesMemoryDeathTest, HostAccessFaults) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const at::Tensor tensor = torch::ones({3}, kCuda1);
  float* const data = tensor.mutable_data_ptr<float>();
  EXPECT_EXIT(data[1] = 2, testing::KilledBySignal(SIGSEGV), "host access to memory of cuda:1");
  EXPECT_EXIT(std::printf("%f", data[1]), testing::KilledBySignal(SIGSEGV),
              "host access to memory of cuda:1");
}

TEST_F(DevicesMemory, FreshMemoryHoldsNan) {
  torch::zeros({64}, kCuda0).add_(1);  // leaves ordinary numbers in the block that is used next
  EXPECT_TRUE(torch::empty({64}, kCuda0).isnan().all().cpu().item<bool>());
}

TEST_F(DevicesMemory, StatisticsCountLiveBytesPerDevice) {
  const std::size_t before = memory_use(0).allocated, other = memory_use(1).allocated;
  simulated::reset_peak(0);
  at::Tensor kept = torch::empty({1000}, kCuda0);  // 4000 bytes, 8 blocks of 512
  EXPECT_EQ(memory_use(0).allocated, before + 4096);
  torch::empty({256}, kCuda0);
  EXPECT_EQ(memory_use(0).allocated, before + 4096);
  EXPECT_EQ(memory_use(0).peak, before + 4096 + 1024);
  EXPECT_EQ(memory_use(1).allocated, other);
  const auto stats = at::accelerator::getDeviceStats(0);
  EXPECT_EQ(stats.allocated_bytes[0].current, static_cast<std::int64_t>(before + 4096));
  EXPECT_EQ(stats.allocated_bytes[0].peak, static_cast<std::int64_t>(before + 4096 + 1024));
  kept.reset();
  simulated::reset_peak(0);
  EXPECT_EQ(memory_use(0).allocated, before);
  EXPECT_EQ(memory_use(0).peak, before);
}

TEST_F(DevicesMemory, RunsOutOfMemory) {
  const auto half = static_cast<std::int64_t>(simulated::Options{}.bytes_per_device / 2);
  torch::empty({1 << 20}, kCuda0);  // a cached block, which the next tensor needs
  EXPECT_THROW(torch::empty({3 * half}, at::device(kCuda0).dtype(at::kByte)), c10::OutOfMemoryError);
  EXPECT_NO_THROW(torch::empty({16}, kCuda0));
}

TEST_F(DevicesMemory, ResizeKeepsContent) {
  at::Tensor tensor = torch::arange(4, kCuda0).to(at::kFloat);
  const at::Tensor view = tensor.slice(0, 1, 3);
  tensor.resize_({2, 1000});
  EXPECT_EQ(tensor.sizes(), (std::vector<std::int64_t>{2, 1000}));
  EXPECT_TRUE(same_bits(tensor.flatten().slice(0, 0, 4).cpu(), torch::arange(4).to(at::kFloat)));
  EXPECT_TRUE(same_bits(view.cpu(), torch::tensor({1.F, 2.F})));
}

TEST_F(DevicesMemory, ViewsShareMemory) {
  const at::Tensor base = torch::zeros({4, 6}, kCuda0);
  base.t().select(0, 2).fill_(5);
  base.view({2, 12}).slice(1, 0, 1).add_(1);
  base.flatten().unfold(0, 2, 22).mul_(2);
  const at::Tensor expected = torch::zeros({4, 6});
  expected.t().select(0, 2).fill_(5);
  expected.view({2, 12}).slice(1, 0, 1).add_(1);
  expected.flatten().unfold(0, 2, 22).mul_(2);
  EXPECT_TRUE(same_bits(base.cpu(), expected));
}

}  // namespace
}  // namespace penstock::test
