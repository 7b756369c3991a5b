// Channels of pairs: opening in any order, the order of transfers, and abort.
#include "comm/transport/pair_channels.h"

#include "comm/transport/thread_backend.h"
#include "support/error_message.h"

#include <penstock/base/error.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <thread>

namespace penstock::comm {
namespace {

// Backends of pairs whose ranks are threads. A channel opens when both ranks open it, as over NCCL.
class PairHub {
 public:
  PairChannels::Open opener(int rank) {
    return [this, rank](int peer) -> c10::intrusive_ptr<c10d::Backend> {
      std::unique_lock lock(mutex_);
      Pair& pair = pairs_[std::minmax(rank, peer)];
      if (!pair.exchange) pair.exchange = std::make_shared<ThreadExchange>(2);
      ++pair.present;
      changed_.notify_all();
      changed_.wait(lock, [&] { return pair.present == 2; });
      return c10::make_intrusive<ThreadBackend>(rank < peer ? 0 : 1, 2, pair.exchange);
    };
  }

 private:
  struct Pair {
    std::shared_ptr<ThreadExchange> exchange;
    int present = 0;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, Pair> pairs_;
};

TEST(CommPairChannels, OpenInAnyOrderWithoutDeadlock) {
  constexpr int ranks = 3;
  PairHub hub;
  std::vector<std::thread> threads;
  std::vector<float> got(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      PairChannels channels(rank, hub.opener(rank));
      const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
      const at::Tensor received = at::zeros(1);
      // Every rank first opens the channel to its next rank: a cycle, if the open blocked.
      const auto send = channels.send({at::full({1}, rank + 1.0)}, next, 0);
      const auto receive = channels.recv({received}, previous, 0);
      receive->wait();
      send->wait();
      got[static_cast<std::size_t>(rank)] = received.item<float>();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(got, testing::ElementsAre(3, 1, 2));
}

TEST(CommPairChannels, KeepOrderOfTransfersThatWereQueued) {
  constexpr int count = 50;
  PairHub hub;
  PairChannels sender(4, hub.opener(4)), receiver(2, hub.opener(2));
  std::vector<at::Tensor> received;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (int i = 0; i < count; ++i) sender.send({at::full({1}, static_cast<float>(i))}, 2, 0);
  for (int i = 0; i < count; ++i) works.push_back(receiver.recv({received.emplace_back(at::zeros(1))}, 4, 0));
  for (int i = 0; i < count; ++i) {
    works[static_cast<std::size_t>(i)]->wait();
    EXPECT_EQ(received[static_cast<std::size_t>(i)].item<float>(), static_cast<float>(i));
  }
}

TEST(CommPairChannels, AbortEndsWaitForPeerThatNeverOpens) {
  auto released = std::make_shared<std::promise<void>>();
  PairChannels channels(0, [done = released->get_future().share()](int) -> c10::intrusive_ptr<c10d::Backend> {
    done.wait();
    throw CommError("never opened");
  });
  const auto receive = channels.recv({at::zeros(1)}, 1, 0);
  EXPECT_FALSE(receive->isCompleted());
  std::thread aborting([&] { channels.abort(); });
  EXPECT_ERROR(receive->wait(), CommError, "was aborted");
  aborting.join();
  EXPECT_TRUE(receive->isCompleted());
  EXPECT_ERROR(channels.send({at::zeros(1)}, 1, 0), CommError, "was aborted");
  released->set_value();
}

TEST(CommPairChannels, ReportErrorOfOpening) {
  PairChannels channels(0, [](int peer) -> c10::intrusive_ptr<c10d::Backend> {
    throw CommError("no way to " + std::to_string(peer));
  });
  // The error may be known before or after the first transfer is queued.
  EXPECT_ERROR(channels.recv({at::zeros(1)}, 1, 0)->wait(), CommError, "no way to 1");
  EXPECT_ERROR(channels.send({at::zeros(1)}, 0, 0), UsageError, "cannot send to itself");
}

}  // namespace
}  // namespace penstock::comm
