// The NCCL transport over libtorch's ProcessGroupNCCL, on a fake CUDA runtime and a fake NCCL.
#include "comm/contract.h"
#include "comm/world/group_use.h"
#include "nccl/ranks.h"
#include "support/check.h"

#include <penstock/base/error.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

namespace penstock::test {
namespace {

using testing::HasSubstr;

const RankFunction contract_ranks("nccl_contract", [] {
  comm::World world = init_on_device();
  for (const ContractCase& contract : contract_cases()) {
    run(contract, world);
    world.group().barrier();
    std::cout << "held " << contract.name << std::endl;
  }
  return 0;
});

class NcclContract : public testing::TestWithParam<int> {};

TEST_P(NcclContract, PassesContractSuite) {
  const RanksOutcome outcome = run_fake_cuda_ranks("nccl_contract", GetParam());
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclContract, testing::Values(2, 3, 4), testing::PrintToStringParamName());

// CPU tensors, objects and barriers go over Gloo, also in groups that are split.
const RankFunction control_ranks("nccl_control", [] {
  comm::World world = init_on_device();
  const comm::Group& group = world.group();
  CHECK_THAT(group.send_mode() == schedule::SendMode::Ordered);
  const auto half = group.split(world.rank().value % 2);
  CHECK_SAME(half->backend(), std::string("nccl"));
  const at::Tensor host = at::full({2}, world.rank().value + 1.0), device = host.to(world.device());
  half->all_reduce(host);
  half->all_reduce(device);
  CHECK_TENSORS(device.cpu(), host);
  CHECK_SAME(half->broadcast_object(std::int64_t{world.rank().value}, 0).toInt(), world.rank().value % 2);
  half->barrier();
  return 0;
});

TEST(NcclTransport, SendsCpuTensorsOverGloo) {
  const RanksOutcome outcome = run_fake_cuda_ranks("nccl_control", 4);
  EXPECT_TRUE(outcome.result.ok) << outcome.text();
}

// The group of a pipeline has transfers, but no communicator for collectives; that of a checkpoint writer has
// only the control backend.
const RankFunction use_ranks("nccl_use", [] {
  comm::World world = init_on_device();
  const comm::Group transfers = duplicate(world.group(), comm::GroupUse::Transfers);
  const comm::Group objects = duplicate(world.group(), comm::GroupUse::Objects);
  CHECK_SAME(transfers.backend(), std::string("nccl"));
  CHECK_SAME(objects.backend(), std::string("gloo"));
  const at::Tensor data = at::full({4}, 5.0, world.device());
  if (world.rank() == Rank(0)) {
    transfers.send(data, 1);
  } else {
    const at::Tensor got = at::zeros({4}, world.device());
    transfers.recv(got, 0);
    CHECK_TENSORS(got, data);
  }
  bool refused = false;
  try {
    transfers.all_reduce(data);
  } catch (const UsageError&) {
    refused = true;
  }
  CHECK_THAT(refused);
  CHECK_SAME(objects.broadcast_object(std::int64_t{world.rank().value}, 1).toInt(), std::int64_t{1});
  transfers.barrier();
  return 0;
});

TEST(NcclTransport, OpensNoCommunicatorThatIsNotNeeded) {
  const RanksOutcome outcome = run_fake_cuda_ranks("nccl_use", 2);
  EXPECT_TRUE(outcome.result.ok) << outcome.text();
}

// Rank 1 receives only after rank 0 has computed and waited for its device. If the send held up the
// computation, both would wait forever.
const RankFunction overlap_ranks("nccl_overlap", [] {
  comm::World world = init_on_device(std::chrono::seconds(20));
  const comm::Group& group = world.group();
  const at::Tensor data = at::full({1000}, 7.0, world.device()), token = at::ones(1);
  if (world.rank() == Rank(0)) {
    group.isend(data, 1);  // dropped
    comm::Work kept = group.isend(data, 1);
    const at::Tensor sum = at::full({10}, 2.0, world.device()).mul_(3).sum();
    CHECK_SAME(sum.item<double>(), 60.0);
    group.send(token, 1, 1);
    kept.wait();
  } else {
    group.recv(token, 0, 1);
    for (int i = 0; i < 2; ++i) {
      const at::Tensor got = at::zeros({1000}, world.device());
      group.recv(got, 0);
      CHECK_TENSORS(got, data);
    }
  }
  group.barrier();
  return 0;
});

TEST(NcclTransport, PendingSendDoesNotDelayComputation) {
  const RanksOutcome outcome = run_fake_cuda_ranks("nccl_overlap", 2);
  EXPECT_TRUE(outcome.result.ok) << outcome.text();
}

// Both ranks of a pair send first: NCCL hangs, and Penstock says who waited for whom.
const RankFunction cross_ranks("nccl_cross", [] {
  comm::World world = init_on_device(std::chrono::seconds(3));
  const comm::Group& group = world.group();
  const int other = 1 - group.rank();
  const at::Tensor data = at::ones({8}, world.device()), got = at::zeros({8}, world.device());
  try {
    comm::Work send = group.isend(data, other), receive = group.irecv(got, other);
    receive.wait();
    send.wait();
    got.sum().item<float>();
    world.check();
  } catch (const CommError& e) {
    std::cout << e.what() << std::endl;
    return 5;
  }
  return 0;
});

TEST(NcclTransport, ReportsTransfersInWrongOrder) {
  const RanksOutcome outcome = run_fake_cuda_ranks("nccl_cross", 2);
  EXPECT_THAT(outcome.text(), testing::ContainsRegex("rank [01] waited .* for rank [01]: send of 32 B"));
  for (const auto& rank : outcome.result.ranks) EXPECT_EQ(rank.code, 5) << outcome.text();
}

}  // namespace
}  // namespace penstock::test
