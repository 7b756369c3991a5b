// Operations without a transport: two threads wait for the same one, or it is already done.
#include "comm/world/work_impl.h"
#include "support/check.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace penstock::comm {
namespace {

std::shared_ptr<Work::Impl> pending(const std::shared_ptr<WorldGeneration>& generation) {
  auto state = std::make_shared<Work::Impl>();
  state->generation = generation;
  state->record.op = "recv";
  state->peer_text = "rank 1";
  state->peer = Rank(1);
  EXPECT_TRUE(state->claim());  // another thread waits for the transport
  return state;
}

// A timeout must not count as success: the caller would read a buffer before anything has arrived.
TEST(CommSecondWaiter, TimesOutIfOperationDoesNotEnd) {
  const auto generation = std::make_shared<WorldGeneration>(Rank(0), std::chrono::milliseconds(10));
  EXPECT_ERROR(pending(generation)->wait(), TimeoutError, ", for rank 1: recv");
}

TEST(CommSecondWaiter, LearnsOfFailureAndCompletion) {
  const auto generation = std::make_shared<WorldGeneration>(Rank(0), std::chrono::seconds(60));
  const auto ended = pending(generation);
  ended->status = Work::Impl::Status::Done;
  EXPECT_NO_THROW(ended->wait());
  const auto state = pending(generation);
  generation->failure.report({Rank(1), "was killed"});
  EXPECT_ERROR(state->wait(), PeerFailed, "rank 1 failed: was killed");
}

// Averages and the sums of reduce-scatter are such functions: a caller's own one must not replace them.
TEST(CommWork, RunsFunctionsInOrder) {
  run_thread_ranks(2, [](World& world) {
    const Group& group = world.group();
    const auto value = static_cast<float>(world.rank().value + 1);
    const at::Tensor mean = at::full({4}, value);
    at::Tensor seen;
    Work work = group.iall_reduce(mean, ReduceOp::Avg);
    work.then([&] { seen = mean.clone(); });
    work.then([&] { seen.add_(1); });
    work.wait();
    CHECK_TENSORS(mean, at::full({4}, 1.5F));
    CHECK_TENSORS(seen, at::full({4}, 2.5F));
    const at::Tensor shard = at::zeros({2});
    work = group.ireduce_scatter_into(shard, at::full({4}, value), ReduceOp::Avg);
    bool called = false;
    work.then([&] { called = true; });
    work.wait();
    CHECK_TENSORS(shard, at::full({2}, 1.5F));
    CHECK_THAT(called);
  });
}

// After `done`, the reaper waits for the operation, and a function that is added could be lost.
TEST(CommWork, RefusesFunctionAfterDone) {
  run_thread_ranks(2, [](World& world) {
    const Group& group = world.group();
    const at::Tensor start = at::zeros({1}), value = at::full({4}, 3.0F);
    if (world.rank().value == 1) {  // sends only when rank 0 has seen the pending receive
      group.recv(start, 0);
      group.send(value, 0);
      return;
    }
    const at::Tensor received = at::zeros({4});
    Work work = group.irecv(received, 1);
    CHECK_THAT(!work.done());
    bool refused = false;
    try {
      work.then([] {});
    } catch (const UsageError&) {
      refused = true;
    }
    group.send(start, 1);
    work.wait();
    CHECK_THAT(refused);
    CHECK_TENSORS(received, value);
  });
}

TEST(CommWork, DefaultIsAlreadyDone) {
  Work work;
  EXPECT_TRUE(work.done());
  int calls = 0;
  work.then([&] { ++calls; });
  EXPECT_EQ(calls, 1);
  work.wait();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace penstock::comm
