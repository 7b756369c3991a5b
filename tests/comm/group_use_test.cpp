// Groups open no more connections than their use needs.
#include "comm/transport/self_transport.h"
#include "comm/world/access.h"
#include "comm/world/group_impl.h"
#include "support/check.h"

#include <penstock/comm/thread_ranks.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::comm {
namespace {

using testing::ElementsAre;

using Calls = std::vector<std::string>;

//! Notes its calls. Like NCCL, it has another transport for CPU tensors.
class DeviceTransport : public SelfTransport {
 public:
  DeviceTransport(Calls& calls, std::string name, std::shared_ptr<Transport> control)
      : calls_(calls), name_(std::move(name)), control_(std::move(control)) {}
  c10::intrusive_ptr<c10d::Backend> connect(WorldGeneration& generation, const std::string& group,
                                            const std::vector<int>& members, int me) override {
    calls_.push_back(name_ + " connects " + group);
    return SelfTransport::connect(generation, group, members, me);
  }
  c10::intrusive_ptr<c10d::Backend> connect_transfers(WorldGeneration& generation, const std::string& group,
                                                      const std::vector<int>& members, int me) override {
    calls_.push_back(name_ + " prepares transfers of " + group);
    return SelfTransport::connect(generation, group, members, me);
  }
  schedule::SendMode send_mode() const override {
    return control_ ? schedule::SendMode::Ordered : schedule::SendMode::Buffered;
  }
  bool runs_on_stream() const override { return control_ != nullptr; }
  std::shared_ptr<Transport> control() const override { return control_; }

 private:
  Calls& calls_;
  std::string name_;
  std::shared_ptr<Transport> control_;
};

class CommGroupUse : public testing::Test {
 protected:
  Group group(std::vector<int> members) {
    Group made = Access::group(make_group("all", std::move(members), 0, transport_, generation_));
    calls_.clear();
    return made;
  }

  Calls calls_;
  std::shared_ptr<Transport> transport_ = std::make_shared<DeviceTransport>(
      calls_, "nccl", std::make_shared<DeviceTransport>(calls_, "gloo", nullptr));
  std::shared_ptr<WorldGeneration> generation_ =
      std::make_shared<WorldGeneration>(Rank(0), std::chrono::minutes(1));
};

TEST_F(CommGroupUse, ConnectsBothWaysForEverything) {
  const Group all = group({0, 1});
  const Group copy = duplicate(all, GroupUse::Everything);
  EXPECT_THAT(calls_, ElementsAre("gloo connects all/0.0", "nccl connects all/0.0"));
  EXPECT_EQ(copy.size(), 2);
  EXPECT_EQ(copy.send_mode(), schedule::SendMode::Ordered);
}

TEST_F(CommGroupUse, OpensNoCommunicatorForTransfers) {
  const Group copy = duplicate(group({0, 1}), GroupUse::Transfers);
  EXPECT_THAT(calls_, ElementsAre("gloo connects all/0.0", "nccl prepares transfers of all/0.0"));
  EXPECT_EQ(copy.send_mode(), schedule::SendMode::Ordered);
  // A group that is made from it has collectives.
  calls_.clear();
  duplicate(copy, GroupUse::Everything);
  EXPECT_THAT(calls_, ElementsAre("gloo connects all/0.0/0.0", "nccl connects all/0.0/0.0"));
}

TEST_F(CommGroupUse, TakesOnlyTheCpuPathForObjects) {
  const Group copy = duplicate(group({0, 1}), GroupUse::Objects);
  EXPECT_THAT(calls_, ElementsAre("gloo connects all/0.0"));
  EXPECT_EQ(copy.send_mode(), schedule::SendMode::Buffered);
}

TEST_F(CommGroupUse, OneRankNeedsNoCommunicator) {
  const Group one = Access::group(make_group("one", {3}, 0, transport_, generation_));
  EXPECT_THAT(calls_, ElementsAre());
  const at::Tensor tensor = at::full({2}, 4.0);
  one.all_reduce(tensor, ReduceOp::Avg);
  EXPECT_TRUE(tensor.equal(at::full({2}, 4.0)));
  EXPECT_EQ(one.split(0)->size(), 1);
  one.barrier();
}

TEST_F(CommGroupUse, MessagesOfCopiesDoNotMix) {
  for (const GroupUse use : {GroupUse::Everything, GroupUse::Transfers, GroupUse::Objects}) {
    run_thread_ranks(3, [use](World& world) {
      const Group first = duplicate(world.group(), use), second = duplicate(world.group(), use);
      CHECK_SAME(first.rank(), world.group().rank());
      const int next = (first.rank() + 1) % 3, before = (first.rank() + 2) % 3;
      second.isend(at::full({1}, 20 + first.rank()), next).detach();
      first.isend(at::full({1}, 10 + first.rank()), next).detach();
      const at::Tensor got = at::zeros({1}, at::kLong);
      first.recv(got, before);
      CHECK_SAME(got.item<std::int64_t>(), std::int64_t{10} + before);
      second.recv(got, before);
      CHECK_SAME(got.item<std::int64_t>(), std::int64_t{20} + before);
    });
  }
}

}  // namespace
}  // namespace penstock::comm
