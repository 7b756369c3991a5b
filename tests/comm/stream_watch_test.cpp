// Operations on streams: waits that do not block, timeouts and broken transports found by the watch, aborts.
#include "comm/world/access.h"
#include "comm/world/group_impl.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace penstock::comm {
namespace {

//! An operation on a stream: `wait` returns at once, and the test says when the operation ends.
class StreamWork : public c10d::Work {
 public:
  bool isCompleted() override { return done || broken; }
  std::exception_ptr exception() const override {
    return broken ? std::make_exception_ptr(std::runtime_error("the cable is cut")) : nullptr;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    EXPECT_EQ(timeout, kNoTimeout);
    return true;
  }
  std::atomic<bool> done{false}, broken{false};
};

class StreamBackend : public c10d::Backend {
 public:
  StreamBackend() : c10d::Backend(0, 2) {}
  const std::string getBackendName() const override { return "streams"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>&, int, int) override { return work; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    EXPECT_TRUE(options.reduceOp == c10d::ReduceOp::AVG);
    tensors[0].mul_(3);
    return work;
  }
  void abort() override { aborted = true; }
  void shutdown() override {
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // shows a caller that does not wait for it
    closed = true;
  }

  c10::intrusive_ptr<StreamWork> work = c10::make_intrusive<StreamWork>();
  std::atomic<bool> aborted{false}, closed{false};
};

class StreamTransport : public Transport {
 public:
  explicit StreamTransport(c10::intrusive_ptr<StreamBackend> backend) : backend_(std::move(backend)) {}
  c10::intrusive_ptr<c10d::Backend> connect(WorldGeneration&, const std::string&, const std::vector<int>&,
                                            int) override {
    return backend_;
  }
  schedule::SendMode send_mode() const override { return schedule::SendMode::Ordered; }
  bool collectives_have_futures() const override { return false; }
  bool runs_on_stream() const override { return true; }
  bool averages() const override { return true; }

 private:
  c10::intrusive_ptr<StreamBackend> backend_;
};

class CommStreamWatch : public testing::Test {
 protected:
  Group group(std::chrono::milliseconds timeout) {
    generation = std::make_shared<WorldGeneration>(Rank(0), timeout);
    return Access::group(
        make_group("streams", {0, 1}, 0, std::make_shared<StreamTransport>(backend), generation));
  }
  c10::intrusive_ptr<StreamBackend> backend = c10::make_intrusive<StreamBackend>();
  std::shared_ptr<WorldGeneration> generation;
  at::Tensor tensor = at::ones(2);
};

TEST_F(CommStreamWatch, WaitDoesNotWaitForTheOperation) {
  const Group streams = group(std::chrono::minutes(5));
  Work work = streams.isend(tensor, 1);
  EXPECT_FALSE(work.done());
  work.wait();
  EXPECT_EQ(generation->recorder.records().back().finished, FlightRecord{}.finished);
  backend->work->done = true;
  generation->stream_watch.drain();
  EXPECT_NE(generation->recorder.records().back().finished, FlightRecord{}.finished);
  EXPECT_FALSE(generation->recorder.records().back().failed);
}

TEST_F(CommStreamWatch, BackendComputesAverages) {
  const Group streams = group(std::chrono::minutes(5));
  streams.all_reduce(tensor, ReduceOp::Avg);
  EXPECT_TRUE(tensor.equal(at::full({2}, 3.0)));
  backend->work->done = true;
}

TEST_F(CommStreamWatch, OverdueOperationIsTimeoutOfTheNext) {
  const Group streams = group(std::chrono::milliseconds(50));
  streams.isend(tensor, 1).wait();
  ASSERT_TRUE(generation->failure.wait_for_report(std::chrono::minutes(1)));
  EXPECT_ERROR(streams.isend(tensor, 1), TimeoutError, "for rank 1: send of 8 B");
  while (!backend->aborted) std::this_thread::yield();
}

TEST_F(CommStreamWatch, BrokenOperationIsFailureOfItsPeer) {
  const Group streams = group(std::chrono::minutes(5));
  backend->work->broken = true;
  streams.isend(tensor, 1).detach();
  ASSERT_TRUE(generation->failure.wait_for_report(std::chrono::minutes(1)));
  EXPECT_ERROR(streams.isend(tensor, 1), PeerFailed, "the cable is cut");
}

TEST_F(CommStreamWatch, FailureAbortsBackendAndEndsItsOperations) {
  const Group streams = group(std::chrono::minutes(5));
  Work work = streams.isend(tensor, 1);
  generation->failure.report({Rank(1), "it exploded"});
  EXPECT_ERROR(work.wait(), PeerFailed, "it exploded");
  generation->stream_watch.drain();
  generation->aborter.wait(std::chrono::minutes(1));
  EXPECT_TRUE(backend->aborted);
}

// The thread of the watch may hold the last reference to a group. If it still destroyed the group after
// `drain`, the process could exit meanwhile.
TEST_F(CommStreamWatch, DrainWaitsUntilGroupsAreReleased) {
  {
    const Group streams = group(std::chrono::minutes(5));
    streams.isend(tensor, 1).wait();
  }
  EXPECT_FALSE(backend->closed);
  backend->work->done = true;
  generation->stream_watch.drain();
  EXPECT_TRUE(backend->closed);
}

TEST_F(CommStreamWatch, GroupShutsDownWhenDestroyed) {
  { const Group streams = group(std::chrono::minutes(5)); }
  EXPECT_TRUE(backend->closed);
  EXPECT_FALSE(backend->aborted);
}

TEST(CommRebuild, WorldHasNoGroupAfterFailedRebuild) {
  InitOptions options;
  options.join_timeout = std::chrono::milliseconds(50);
  const auto errors = try_thread_ranks(
      2,
      [](World& world) {
        world.group().barrier();
        if (world.rank() == Rank(1)) return;
        EXPECT_ERROR(world.rebuild(), TimeoutError, "did not join");
        EXPECT_ERROR(world.group(), UsageError, "rebuild() failed");
      },
      options);
  EXPECT_EQ(errors[0], nullptr);
}

}  // namespace
}  // namespace penstock::comm
