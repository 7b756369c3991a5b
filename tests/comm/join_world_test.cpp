// Worlds through a store of the caller. The ranks are threads, each with a world of processes of its own.
#include "support/check.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/comm/world.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace penstock::comm {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

void run_ranks(int ranks, const StorePtr& store, const InitOptions& options,
               const std::function<void(World&)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        World world = join_world(store, {.rank = Rank(rank), .world_size = ranks}, options);
        body(world);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

TEST(CommJoinWorld, ConnectsRanksOverTheBackend) {
  for (const BackendKind backend : {BackendKind::Gloo, BackendKind::Shm}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    run_ranks(3, store, {.backend = backend}, [](World& world) {
      at::Tensor sum = at::full({4}, static_cast<double>(world.rank().value));
      world.group().all_reduce(sum);
      EXPECT_TRUE(at::equal(sum, at::full({4}, 3.0)));
    });
  }
}

TEST(CommJoinWorld, SharesAStoreByPrefixes) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (const char* const prefix : {"first", "second"}) {
    const auto own = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
    run_ranks(2, own, {.backend = BackendKind::Gloo}, [](World& world) { world.group().barrier(); });
  }
}

TEST(CommJoinWorld, ReportsFailures) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(2, store, {.backend = BackendKind::Gloo}, [](World& world) {
    if (world.rank().value == 1) return world.fail("no more data");
    at::Tensor tensor = at::zeros({1});
    EXPECT_ERROR(world.group().recv(tensor, 1), PeerFailed, "no more data");
  });
}

TEST(CommJoinWorld, OfOneRankNeedsNoStore) {
  const World world = join_world(nullptr, {});
  EXPECT_EQ(world.size(), 1);
  at::Tensor tensor = at::ones({2});
  world.group().all_reduce(tensor);
  EXPECT_TRUE(at::equal(tensor, at::ones({2})));
}

TEST(CommJoinWorld, RefusesRanksOutsideTheWorld) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_ERROR(join_world(store, {.rank = Rank(2), .world_size = 2}), UsageError,
               "rank 2 is not in a world of 2 ranks");
  EXPECT_ERROR(join_world(nullptr, {.rank = Rank(0), .world_size = 2}), UsageError, "needs a store");
}

}  // namespace
}  // namespace penstock::comm
