// Operations without a transport: two threads wait for the same one, or it is already done.
#include "comm/world/work_impl.h"

#include <penstock/base/error.h>

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
  EXPECT_THROW(pending(generation)->wait(), TimeoutError);
}

TEST(CommSecondWaiter, LearnsOfFailureAndCompletion) {
  const auto generation = std::make_shared<WorldGeneration>(Rank(0), std::chrono::seconds(60));
  const auto ended = pending(generation);
  ended->status = Work::Impl::Status::Done;
  EXPECT_NO_THROW(ended->wait());
  const auto state = pending(generation);
  generation->failure.report({Rank(1), "was killed"});
  EXPECT_THROW(state->wait(), PeerFailed);
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
