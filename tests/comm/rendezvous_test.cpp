// Joining a group: the traffic to the store, and ranks that do not come.
#include "comm/rendezvous/rendezvous.h"

#include "comm/counting_store.h"
#include "support/error_message.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace penstock::test {
namespace {

using comm::WorldGeneration;
using namespace std::chrono_literals;

// The ranks 0 … size-1 of a group, which share a store.
struct Job {
  explicit Job(int size) {
    for (int rank = 0; rank < size; ++rank) members.push_back(rank);
  }

  void join(int rank, std::chrono::milliseconds limit = 1min) {
    const auto generation = std::make_shared<WorldGeneration>(Rank(rank), limit);
    await_members(*store, *generation, "group", members, limit);
  }

  // All ranks except the last, which wait for it, each on its own thread.
  std::vector<std::jthread> all_but_last() {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank + 1 < members.size(); ++rank)
      threads.emplace_back([this, rank] { join(static_cast<int>(rank)); });
    return threads;
  }

  std::vector<int> members;
  CountingStore::Counter calls = std::make_shared<std::atomic<std::int64_t>>(0);
  c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<CountingStore>(c10::make_intrusive<c10d::HashStore>(), calls);
};

TEST(CommRendezvous, MessagesOfRankDoNotDependOnNumberOfMembers) {
  for (const int size : {2, 64}) {
    Job job(size);
    {
      const auto waiting = job.all_but_last();
      job.join(size - 1);
    }
    const std::int64_t before = *job.calls;
    job.join(0);  // everyone is here: one announcement, one look
    EXPECT_EQ(*job.calls - before, 2) << size;
  }
}

TEST(CommRendezvous, SecondAnnouncementOfRankDoesNotCount) {
  Job job(3);
  EXPECT_ERROR(job.join(0, 1ms), TimeoutError, "these ranks had not joined: 1, 2");
  EXPECT_ERROR(job.join(0, 1ms), TimeoutError, "these ranks had not joined: 1, 2");
  EXPECT_ERROR(job.join(1, 1ms), TimeoutError, "these ranks had not joined: 2");
  job.join(2);
}

TEST(CommRendezvous, TimeoutNamesAllMissingRanks) {
  Job job(5);
  EXPECT_ERROR(job.join(3, 1ms), TimeoutError, "these ranks had not joined: 0, 1, 2, 4");
  EXPECT_ERROR(job.join(1, 1ms), TimeoutError, "these ranks had not joined: 0, 2, 4");
}

}  // namespace
}  // namespace penstock::test
