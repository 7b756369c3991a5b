// Streams and events of simulated devices: missing waits are races, and waits remove them.
#include "simulated_device_test.h"
#include "support/same_bits.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace penstock::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class DevicesStreams : public SimulatedDeviceTest {
 protected:
  const c10::impl::VirtualGuardImpl guard_{c10::kCUDA};

  c10::Stream side_stream(c10::Device device = kCuda0) const { return guard_.getNewStream(device); }
  c10::Stream main_stream(c10::Device device = kCuda0) const { return guard_.getStream(device); }

  static void wait(const c10::Stream& waiting, const c10::Stream& waited) {
    c10::Event event(c10::kCUDA);
    event.record(waited);
    event.block(waiting);
  }
};

TEST_F(DevicesStreams, ReadWithoutWaitIsRace) {
  const c10::Stream side = side_stream();
  const at::Tensor tensor = torch::zeros({8}, kCuda0);
  tensor.add_(1);
  {
    const c10::StreamGuard on_side(side);
    (void)tensor.sum();
  }
  ASSERT_EQ(simulated::races().size(), 1u);
  EXPECT_EQ(
      simulated::races()[0].message,
      "aten::sum on stream " + std::to_string(side.id()) +
          " of cuda:0 reads bytes that aten::add on stream 0 of cuda:0 wrote, without a wait between them");
  EXPECT_THAT(take_races(), ElementsAre("aten::sum after aten::add"));
}

TEST_F(DevicesStreams, EventWaitRemovesRace) {
  const c10::Stream side = side_stream();
  const at::Tensor tensor = torch::zeros({8}, kCuda0);
  tensor.add_(1);
  wait(side, main_stream());
  at::Tensor sum;
  {
    const c10::StreamGuard on_side(side);
    sum = tensor.sum();
  }
  EXPECT_THAT(take_races(), IsEmpty());
  wait(main_stream(), side);
  tensor.add_(1);
  EXPECT_EQ(sum.item<float>(), 8);
}

TEST_F(DevicesStreams, WaitCoversOnlyWorkBeforeRecord) {
  const c10::Stream side = side_stream();
  const at::Tensor tensor = torch::zeros({8}, kCuda0);
  wait(side, main_stream());
  tensor.add_(1);
  {
    const c10::StreamGuard on_side(side);
    (void)tensor.sum();
  }
  EXPECT_THAT(take_races(), ElementsAre("aten::sum after aten::add"));
}

TEST_F(DevicesStreams, WriteAfterReadIsRace) {
  const c10::Stream side = side_stream();
  const at::Tensor tensor = torch::zeros({8}, kCuda0);
  wait(side, main_stream());
  {
    const c10::StreamGuard on_side(side);
    (void)tensor.sum();
  }
  (void)tensor.sum();  // two reads do not conflict
  EXPECT_THAT(take_races(), IsEmpty());
  tensor.add_(1);
  EXPECT_THAT(take_races(), ElementsAre("aten::add after aten::sum"));
}

TEST_F(DevicesStreams, WaitIsTransitiveOverThirdStream) {
  const c10::Stream second = side_stream(), third = side_stream(kCuda1);
  const at::Tensor tensor = torch::zeros({8}, kCuda0);
  tensor.add_(1);
  wait(third, main_stream());
  wait(second, third);
  const c10::StreamGuard on_second(second);
  tensor.add_(1);
  EXPECT_THAT(take_races(), IsEmpty());
}

TEST_F(DevicesStreams, DisjointSlicesDoNotConflict) {
  const c10::Stream side = side_stream();
  const at::Tensor bucket = torch::zeros({100}, kCuda0);
  wait(side, main_stream());
  bucket.slice(0, 0, 50).add_(1);
  const c10::StreamGuard on_side(side);
  bucket.slice(0, 50, 100).add_(1);
  EXPECT_THAT(take_races(), IsEmpty());
  bucket.slice(0, 49, 51).add_(1);
  EXPECT_THAT(take_races(), ElementsAre("aten::add after aten::add"));
}

TEST_F(DevicesStreams, HostSynchronizationOrdersStreams) {
  for (const int kind : {0, 1, 2, 3}) {
    settle();
    const c10::Stream side = side_stream();
    const at::Tensor tensor = torch::zeros({8}, kCuda0);
    tensor.add_(1);
    c10::Event event(c10::kCUDA);
    event.record(main_stream());
    if (kind == 0) main_stream().synchronize();
    if (kind == 1) event.synchronize();
    if (kind == 2) at::accelerator::synchronizeDevice(0);
    if (kind == 3) (void)torch::zeros({}, kCuda0).item<float>();
    const c10::StreamGuard on_side(side);
    (void)tensor.sum();
    EXPECT_THAT(take_races(), IsEmpty()) << kind;
  }
}

TEST_F(DevicesStreams, CopyBetweenDevicesOrdersTheirStreams) {
  const at::Tensor tensor = torch::zeros({8}, kCuda0).add_(1);
  const at::Tensor copy = tensor.to(kCuda1);
  copy.add_(1);
  tensor.add_(1);
  EXPECT_THAT(take_races(), IsEmpty());
  // The current stream of the source has not seen the last write.
  const c10::StreamGuard on_side(side_stream());
  (void)tensor.to(kCuda1);
  EXPECT_THAT(take_races(), ElementsAre("aten::copy_ after aten::add"));
}

TEST_F(DevicesStreams, ReusedMemoryNeedsRecordStream) {
  for (const bool recorded : {false, true}) {
    settle();
    at::accelerator::emptyCache();  // so that the next tensor gets the memory of the last one
    const c10::Stream side = side_stream();
    at::Tensor tensor = torch::zeros({8}, kCuda0);
    const void* const data = tensor.const_data_ptr();
    wait(side, main_stream());
    {
      const c10::StreamGuard on_side(side);
      (void)tensor.sum();
    }
    if (recorded) tensor.record_stream(side);
    tensor.reset();
    const at::Tensor next = torch::zeros({8}, kCuda0);
    ASSERT_EQ(next.const_data_ptr(), data);
    if (recorded) {
      EXPECT_THAT(take_races(), IsEmpty());
    } else {
      ASSERT_EQ(simulated::races().size(), 1u);
      EXPECT_THAT(simulated::races()[0].message, testing::HasSubstr("needs record_stream"));
      EXPECT_THAT(take_races(), ElementsAre("aten::zero_ after aten::sum"));
    }
  }
}

TEST_F(DevicesStreams, QueryIsFalseOnceBeforeWait) {
  (void)torch::zeros({8}, kCuda0);
  c10::Event event(c10::kCUDA);
  EXPECT_TRUE(event.query());
  event.record(main_stream());
  EXPECT_FALSE(event.query());
  EXPECT_TRUE(event.query());
  (void)torch::zeros({8}, kCuda0);
  EXPECT_FALSE(main_stream().query());
  main_stream().synchronize();
  EXPECT_TRUE(main_stream().query());
}

TEST_F(DevicesStreams, ElapsedTimeNeedsFinishedEvents) {
  c10::Event start(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT),
      end(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  start.record(main_stream());
  (void)torch::zeros({8}, kCuda0);
  end.record(main_stream());
  EXPECT_THROW(start.elapsedTime(end), c10::Error);
  end.synchronize();
  EXPECT_GT(start.elapsedTime(end), 0);
}

TEST_F(DevicesStreams, NonBlockingCopyToHostArrivesWithWait) {
  const at::Tensor device = torch::ones({4}, kCuda0);
  const at::Tensor host = device.to(at::kCPU, /*non_blocking=*/true);
  EXPECT_TRUE(host.is_pinned());
  EXPECT_TRUE(host.isnan().all().item<bool>());
  device.add_(1);  // after the copy, in stream order
  main_stream().synchronize();
  EXPECT_TRUE(same_bits(host, torch::ones({4})));
}

TEST_F(DevicesStreams, UnorderedEventWaitsDeliverBytesOnly) {
  const c10::Stream side = side_stream();
  const at::Tensor tensor = torch::zeros({8}, kCuda0);
  tensor.add_(1);
  const simulated::UnorderedEventWaits unordered;
  const at::Tensor host = tensor.to(at::kCPU, /*non_blocking=*/true);
  c10::Event event(c10::kCUDA);
  event.record(main_stream());
  event.synchronize();
  EXPECT_TRUE(same_bits(host, torch::ones({8})));
  const c10::StreamGuard on_side(side);
  (void)tensor.sum();
  EXPECT_THAT(take_races(), ElementsAre("aten::sum after aten::add"));
}

TEST_F(DevicesStreams, PageableCopyToHostBlocks) {
  const at::Tensor host = torch::zeros({4});
  host.copy_(torch::ones({4}, kCuda0), /*non_blocking=*/true);
  EXPECT_TRUE(same_bits(host, torch::ones({4})));
}

TEST_F(DevicesStreams, HostMustNotChangePinnedSourceOfCopy) {
  for (const bool waits : {true, false}) {
    const at::Tensor host = torch::ones({4}).pin_memory();
    const at::Tensor device = host.to(kCuda0, /*non_blocking=*/true);
    if (waits) main_stream().synchronize();
    host.fill_(2);
    main_stream().synchronize();
    EXPECT_TRUE(same_bits(device.cpu(), torch::ones({4})));
    if (waits) {
      EXPECT_THAT(take_races(), IsEmpty());
    } else {
      EXPECT_THAT(take_races(), ElementsAre("write by the host after copy_"));
    }
  }
}

TEST_F(DevicesStreams, NonBlockingCopyFollowsStreamOrder) {
  const c10::Stream side = side_stream();
  const at::Tensor host = torch::ones({4}).pin_memory();
  at::Tensor device;
  {
    const c10::StreamGuard on_side(side);
    device = host.to(kCuda0, /*non_blocking=*/true);
  }
  (void)device.sum();
  EXPECT_THAT(take_races(), ElementsAre("aten::sum after aten::copy_"));
  wait(main_stream(), side);
  (void)device.sum();
  EXPECT_THAT(take_races(), IsEmpty());
}

TEST_F(DevicesStreams, OffloadedTensorReturnsWithoutHostSync) {
  const at::Tensor device = torch::arange(4, kCuda0).to(at::kFloat);
  const at::Tensor host = device.to(at::kCPU, /*non_blocking=*/true);
  device.zero_();
  simulated::clear_records();
  device.copy_(host, /*non_blocking=*/true);
  EXPECT_THAT(simulated::host_syncs(), IsEmpty());
  EXPECT_TRUE(same_bits(device.cpu(), torch::arange(4).to(at::kFloat)));
}

}  // namespace
}  // namespace penstock::test
