// Ranks on simulated devices: the choice of a device, thread ranks with a device each, and processes over
// Gloo.
#include "comm/contract.h"
#include "comm/transport/optional_backends.h"
#include "comm/world/rank_device.h"
#include "devices/simulated_device_test.h"
#include "support/check.h"
#include "support/error_message.h"
#include "support/process_ranks.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <iostream>

namespace penstock::test {
namespace {

using DevicesRankDevice = SimulatedDeviceTest;

TEST_F(DevicesRankDevice, HasIndexOfLocalRankUnlessOneIsGiven) {
  EXPECT_EQ(comm::resolve_device(c10::kCPU, 3), c10::Device(c10::kCPU));
  EXPECT_EQ(comm::resolve_device(c10::kCUDA, 0), kCuda0);
  EXPECT_EQ(comm::resolve_device(c10::kCUDA, 3), c10::Device(c10::kCUDA, 3));
  EXPECT_EQ(comm::resolve_device(kCuda1, 3), kCuda1);
}

TEST_F(DevicesRankDevice, IsTheOnlyVisibleOneIfTheLauncherAssignedIt) {
  EXPECT_EQ(comm::device_of_rank(3, 1, "5"), 0);
  EXPECT_EQ(comm::device_of_rank(3, 1, "GPU-8932f937"), 0);
  EXPECT_EQ(comm::device_of_rank(3, 1, nullptr), 3);  // one device for several ranks: refused
  EXPECT_EQ(comm::device_of_rank(3, 1, ""), 3);
  EXPECT_EQ(comm::device_of_rank(3, 8, "0,1,2,3,4,5,6,7"), 3);
  EXPECT_EQ(comm::device_of_rank(1, 2, "4,5"), 1);
}

TEST_F(DevicesRankDevice, RefusesAbsentDevices) {
  EXPECT_ERROR(comm::resolve_device(c10::kCUDA, 4), UsageError,
               "local rank 4 has no device: this machine has 4 cuda devices");
  EXPECT_ERROR(comm::resolve_device(c10::Device(c10::kCUDA, 7), 0), UsageError, "there is no device cuda:7");
  EXPECT_ERROR(comm::resolve_device(c10::kXPU, 0), UsageError, "no support for the device xpu");
}

TEST_F(DevicesRankDevice, IsCurrentDeviceOfRank) {
  comm::run_thread_ranks(3,
                         [](comm::World& world) {
                           CHECK_SAME(
                               world.device(),
                               c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(world.rank().value)));
                           CHECK_SAME(at::empty({1}, c10::kCUDA).device(), world.device());
                         },
                         {.device = c10::kCUDA});
}

TEST_F(DevicesRankDevice, ChoosesTransportByDevice) {
  const comm::BackendChoice choice = comm::choose_backend(comm::BackendKind::Auto, kCuda0);
  EXPECT_EQ(choice.kind, comm::nccl_present() ? comm::BackendKind::Nccl : comm::BackendKind::Shm);
}

class DevicesThreadRanks : public SimulatedDeviceTest, public testing::WithParamInterface<ContractCase> {};

TEST_P(DevicesThreadRanks, PassContractSuiteWithADeviceEach) {
  comm::run_thread_ranks(4, [](comm::World& world) { run(GetParam(), world); }, {.device = c10::kCUDA});
}

TEST_P(DevicesThreadRanks, PassContractSuiteOnOneDevice) {
  comm::run_thread_ranks(3, [](comm::World& world) { run(GetParam(), world); }, {.device = kCuda1});
}

TEST_P(DevicesThreadRanks, PassContractSuiteOnStreamsOfTheirOwn) {
  comm::run_thread_ranks(
      3,
      [](comm::World& world) {
        const c10::impl::VirtualGuardImpl devices(c10::kCUDA);
        const c10::StreamGuard guard(devices.getStreamFromGlobalPool(world.device(), false));
        run(GetParam(), world);
      },
      {.device = c10::kCUDA});
}

INSTANTIATE_TEST_SUITE_P(Cases, DevicesThreadRanks, testing::ValuesIn(contract_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

using DevicesThreadTransport = SimulatedDeviceTest;

TEST_F(DevicesThreadTransport, MovesDataToDeviceOfReceiver) {
  comm::run_thread_ranks(2,
                         [](comm::World& world) {
                           const comm::Group& group = world.group();
                           const at::Tensor host = at::arange(5, at::kFloat);
                           if (world.rank() == Rank(0)) {
                             group.send(host.to(world.device()), 1);
                             group.send(host, 1);
                           } else {
                             const at::Tensor on_host = at::zeros(5),
                                              on_device = at::zeros({5}, world.device());
                             group.recv(on_host, 0);
                             group.recv(on_device, 0);
                             CHECK_TENSORS(on_host, host);
                             CHECK_TENSORS(on_device.cpu(), host);
                           }
                         },
                         {.device = c10::kCUDA});
}

// The continuation of a detached operation runs on the reaper, but on the stream of the operation.
TEST_F(DevicesThreadTransport, ContinuesOnStreamOfOperation) {
  comm::run_thread_ranks(2,
                         [](comm::World& world) {
                           const comm::Group& group = world.group();
                           const at::Tensor tensor = at::ones({3}, world.device());
                           const at::Tensor token = at::ones(1);
                           if (world.rank() == Rank(0)) {
                             comm::Work work = group.irecv(tensor, 1);
                             work.then([tensor] { tensor.mul_(2); });
                             work.detach();
                             group.send(token, 1, 9);
                             group.recv(token, 1, 9);
                           } else {
                             group.recv(token, 0, 9);  // the receive waits on the reaper
                             group.send(tensor * 5, 0);
                             group.send(token, 0, 9);
                           }
                           group.barrier();
                         },
                         {.device = c10::kCUDA});
}

const RankFunction gloo_ranks("gloo_on_devices", [] {
  simulated::enable();
  comm::World world = comm::init({.backend = comm::BackendKind::Gloo, .device = c10::kCUDA});
  for (const ContractCase& contract : contract_cases()) {
    run(contract, world);
    world.group().barrier();
    std::cout << "held " << contract.name << std::endl;
  }
  for (const simulated::Race& race : simulated::races()) std::cout << race.message << std::endl;
  return simulated::races().empty() ? 0 : 1;
});

TEST(DevicesGloo, PassesContractSuiteWithDeviceTensors) {
  if (!simulated::available()) GTEST_SKIP() << "this libtorch has a CUDA of its own";
  for (const int ranks : {2, 4}) {
    const RanksOutcome outcome = run_process_ranks("gloo_on_devices", ranks);
    ASSERT_TRUE(outcome.result.ok) << outcome.text();
    for (const auto& lines : outcome.lines)
      EXPECT_EQ(lines.size(), contract_cases().size()) << outcome.text();
  }
}

const RankFunction too_many_ranks("too_many_ranks", [] {
  simulated::enable({.devices = 1});
  try {
    comm::init({.device = c10::kCUDA});
  } catch (const UsageError& e) {
    std::cout << e.what() << std::endl;
    return 3;
  }
  return 0;
});

TEST(DevicesGloo, RefusesMoreRanksThanDevices) {
  if (!simulated::available()) GTEST_SKIP() << "this libtorch has a CUDA of its own";
  const RanksOutcome outcome = run_process_ranks("too_many_ranks", 2);
  EXPECT_THAT(outcome.text(),
              testing::HasSubstr("local rank 1 has no device: this machine has 1 cuda device"));
}

}  // namespace
}  // namespace penstock::test
