// Host syncs on simulated devices: what blocks the host, and what does not.
#include "simulated_device_test.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <thread>

namespace penstock::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class DevicesHostSyncs : public SimulatedDeviceTest {
 protected:
  static std::vector<std::string> causes(const std::function<void()>& body) {
    simulated::clear_records();
    body();
    std::vector<std::string> found;
    for (const simulated::HostSync& sync : simulated::host_syncs()) found.push_back(sync.cause);
    return found;
  }
};

TEST_F(DevicesHostSyncs, AreCountedExactly) {
  const at::Tensor x = torch::ones({4, 4}, kCuda0);
  EXPECT_THAT(causes([&] {
                at::Tensor y = x.matmul(x).relu_();
                y += 1;
                (void)y.sum().item<float>();
                (void)y.cpu();
                (void)y.nonzero();
                x.copy_(y);
                c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(kCuda0).synchronize();
                at::accelerator::synchronizeDevice(0);
              }),
              ElementsAre("aten::_local_scalar_dense", "aten::copy_", "aten::nonzero", "stream", "device"));
}

TEST_F(DevicesHostSyncs, CountCopiesThatBlock) {
  const at::Tensor pageable = torch::ones({4}), pinned = torch::ones({4}).pin_memory();
  EXPECT_THAT(causes([&] { (void)pageable.to(kCuda0); }), ElementsAre("aten::copy_"));
  EXPECT_THAT(causes([&] { (void)pinned.to(kCuda0); }), ElementsAre("aten::copy_"));
  EXPECT_THAT(causes([&] { (void)pageable.to(kCuda0, /*non_blocking=*/true); }), IsEmpty());
  EXPECT_THAT(causes([&] { (void)pinned.to(kCuda0, /*non_blocking=*/true); }), IsEmpty());
  const at::Tensor device = torch::ones({4}, kCuda0);
  EXPECT_THAT(causes([&] { (void)device.to(kCuda1); }), IsEmpty());
  EXPECT_THAT(causes([&] { (void)device.to(at::kCPU, /*non_blocking=*/true); }), IsEmpty());
  EXPECT_THAT(causes([&] { pageable.copy_(device, /*non_blocking=*/true); }), ElementsAre("aten::copy_"));
}

TEST_F(DevicesHostSyncs, CountIndexingThatReadsValues) {
  const at::Tensor x = torch::ones({4}, kCuda0), mask = x > 0;
  const at::Tensor index = torch::arange(2, kCuda0);
  using at::indexing::TensorIndex;
  EXPECT_THAT(causes([&] { (void)x.index({TensorIndex(index)}); }), IsEmpty());
  EXPECT_THAT(causes([&] { (void)x.index({TensorIndex(mask)}); }), ElementsAre("aten::nonzero"));
  EXPECT_THAT(causes([&] { (void)x.index({TensorIndex(index.cpu())}); }),
              ElementsAre("aten::copy_", "aten::copy_"));  // of `cpu` and inside `index`
  EXPECT_THAT(causes([&] { (void)x.masked_select(mask); }), ElementsAre("aten::masked_select"));
  EXPECT_THAT(causes([&] { (void)x.masked_fill(mask, 3); }), IsEmpty());
  EXPECT_THAT(causes([&] { (void)at::equal(x, x); }), ElementsAre("aten::equal"));
  EXPECT_THAT(causes([&] { (void)x.index_put({index}, torch::zeros({2}, kCuda0)); }), IsEmpty());
  EXPECT_THAT(causes([&] { (void)x.index_put({mask}, torch::zeros({4}, kCuda0)); }),
              ElementsAre("aten::_index_put_impl_"));
}

TEST_F(DevicesHostSyncs, NameThreadAndDevice) {
  std::thread::id worker;
  std::thread([&] {
    worker = std::this_thread::get_id();
    c10::Event event(c10::kCUDA);
    event.record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(kCuda1));
    event.synchronize();
    EXPECT_FALSE(simulated::host_syncs().empty());
  }).join();
  (void)torch::ones({1}, kCuda0).item<float>();
  const auto syncs = simulated::host_syncs();
  ASSERT_EQ(syncs.size(), 2u);
  EXPECT_EQ(syncs[0].cause, "event");
  EXPECT_EQ(syncs[0].device, 1);
  EXPECT_EQ(syncs[0].thread, worker);
  EXPECT_EQ(syncs[1].device, 0);
  EXPECT_EQ(syncs[1].thread, std::this_thread::get_id());
}

}  // namespace
}  // namespace penstock::test
