// A failed rank raises an error on every other rank within the documented time, with its rank and message.
// Nothing hangs, and the world can be rebuilt if the processes are alive.
#include "support/check.h"
#include "support/error_message.h"
#include "support/process_ranks.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <random>

namespace penstock::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC, shared by all processes

double seconds_now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// The line that a rank prints when it learns of a failure, and its parser.
int report(const PeerFailed& e) {
  std::cout << "failed " << e.peer().value << " " << std::to_string(seconds_now()) << " " << e.cause()
            << std::endl;
  return 7;
}

struct Learned {
  int peer = -1;
  double at = 0;
  std::string cause;
};

std::optional<Learned> learned(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    if (!line.starts_with("failed ")) continue;
    std::istringstream text(line.substr(7));
    Learned result;
    text >> result.peer >> result.at;
    std::getline(text, result.cause);
    return result;
  }
  return std::nullopt;
}

// 5 s is documented; a busy machine with 2 cores gets some room.
constexpr double kPromise = 5.0;
constexpr double kRoom = 5.0;

//! Runs every operation in turn, forever.
[[noreturn]] void work_forever(comm::World& world) {
  const comm::Group& group = world.group();
  const int n = group.size(), me = group.rank();
  const at::Tensor mine = at::ones(500), got = at::empty(500), large = at::ones(100'000);
  for (std::int64_t i = 0;; ++i) {
    comm::Work receive = group.irecv(got, (me + n - 1) % n, 1);
    group.isend(mine, (me + 1) % n, 1).detach();
    receive.wait();
    group.all_reduce(large);
    group.all_gather(mine);
    group.barrier();
    if (i % 5 == 0) std::cout << "progress " << i << std::endl;
  }
}

const RankFunction loop_ranks("loop", [] {
  comm::World world = comm::init();
  try {
    work_forever(world);
  } catch (const PeerFailed& e) {
    return report(e);
  }
});

// Kills one rank of a loop over 4 ranks after random progress, and returns how long the others took to detect
// it.
void kill_one(unsigned seed, double& slowest) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr int ranks = 4;
  const int victim = static_cast<int>(random() % ranks);
  const int watched = static_cast<int>(random() % ranks);
  int lines_left = 1 + static_cast<int>(random() % 25);
  std::vector<pid_t> pids;
  double killed_at = 0;
  RanksOptions options;
  options.on_start = [&](const std::vector<pid_t>& started) { pids = started; };
  options.on_line = [&](Rank rank, comm::OutputStream, std::string_view) {
    if (rank.value != watched || --lines_left != 0) return;
    killed_at = seconds_now();
    kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
  };
  const RanksOutcome outcome = run_process_ranks("loop", ranks, options);
  EXPECT_FALSE(outcome.result.ok);
  ASSERT_EQ(outcome.result.first_failure, Rank(victim)) << outcome.text();
  EXPECT_THAT(to_string(outcome.result),
              HasSubstr("rank " + std::to_string(victim) + " failed first: it was killed by signal 9"));
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == victim) continue;
    const auto found = learned(outcome.lines[static_cast<std::size_t>(rank)]);
    ASSERT_TRUE(found.has_value()) << "rank " << rank << "\n" << outcome.text();
    EXPECT_EQ(found->peer, victim) << outcome.text();
    EXPECT_LT(found->at - killed_at, kPromise + kRoom) << outcome.text();
    slowest = std::max(slowest, found->at - killed_at);
    EXPECT_EQ(outcome.result.ranks[static_cast<std::size_t>(rank)].code, 7) << outcome.text();
  }
}

TEST(CommKilledRank, RaisesPeerFailedOnEveryOtherRankAtRandomTimes) {
  // The slow tier sets a higher number.
  const char* const asked = std::getenv("PENSTOCK_KILLS");
  const unsigned kills = asked != nullptr ? static_cast<unsigned>(std::stoul(asked)) : 8;
  double slowest = 0;
  for (unsigned seed = 1; seed <= kills; ++seed) kill_one(seed, slowest);
  std::cout << kills << " kills, the slowest rank knew after " << slowest << " s" << std::endl;
}

const RankFunction throwing_ranks("throwing", [] {
  comm::World world = comm::init();
  const at::Tensor tensor = at::ones(4);
  world.group().all_reduce(tensor);
  const at::Tensor token = at::ones(1);
  if (world.rank() == Rank(1)) {
    // Once the other ranks wait in the operation that this rank does not join.
    for (const int other : {0, 2}) world.group().recv(token, other);
    throw std::runtime_error("the valve is stuck");
  }
  try {
    comm::Work joined = world.group().iall_reduce(tensor);
    world.group().isend(token, 1).detach();
    joined.wait();
  } catch (const PeerFailed& e) {
    return report(e);
  }
  return 0;
});

TEST(CommThrowingRank, MessageReachesEveryOtherRank) {
  const RanksOutcome outcome = run_process_ranks("throwing", 3);
  EXPECT_EQ(outcome.result.first_failure, Rank(1)) << outcome.text();
  for (const std::size_t rank : {0U, 2U}) {
    const auto found = learned(outcome.lines[rank]);
    ASSERT_TRUE(found.has_value()) << outcome.text();
    EXPECT_EQ(found->peer, 1);
    EXPECT_THAT(found->cause, HasSubstr("the valve is stuck"));
  }
  EXPECT_THAT(to_string(outcome.result), HasSubstr("rank 1 did not join all_reduce number 2 on group world"));
}

const RankFunction leaving_ranks("leaving", [] {
  try {
    comm::World world = comm::init();
    if (world.rank() == Rank(0)) throw UsageError("caught further out");
    world.group().barrier();
  } catch (const PeerFailed& e) {
    return report(e);
  } catch (const UsageError&) {
    return 3;
  }
  return 0;
});

TEST(CommThrowingRank, ExceptionThatDestroysWorldIsFailureEvenIfCaught) {
  const RanksOutcome outcome = run_process_ranks("leaving", 2);
  const auto found = learned(outcome.lines[1]);
  ASSERT_TRUE(found.has_value()) << outcome.text();
  EXPECT_EQ(found->peer, 0);
  EXPECT_THAT(found->cause, HasSubstr("while an exception was being thrown"));
}

// Rank 1 makes one step fewer than the others.
const RankFunction departing_ranks("departing", [] {
  comm::World world = comm::init();
  const at::Tensor tensor = at::ones(4);
  const int steps = world.rank() == Rank(1) ? 2 : 3;
  try {
    for (int step = 0; step < steps; ++step) world.group().all_reduce(tensor);
  } catch (const PeerFailed& e) {
    return report(e);
  }
  return 0;
});

TEST(CommDepartedRank, IsNamedToRanksThatStillWaitForIt) {
  const RanksOutcome outcome = run_process_ranks("departing", 3);
  EXPECT_EQ(outcome.result.ranks[1].code, 0) << outcome.text();
  EXPECT_EQ(outcome.result.first_failure, Rank(1)) << outcome.text();
  for (const std::size_t rank : {0U, 2U}) {
    const auto found = learned(outcome.lines[rank]);
    ASSERT_TRUE(found.has_value()) << outcome.text();
    EXPECT_EQ(found->peer, 1);
    EXPECT_THAT(found->cause, ContainsRegex("left the world while rank [02] waited for it in all_reduce"));
    EXPECT_THAT(found->cause, HasSubstr("every rank runs the same number of steps"));
  }
  EXPECT_THAT(to_string(outcome.result), HasSubstr("rank 1 failed first: left the world while rank "));
}

// Ranks that leave one after the other, as at the end of every program, are not a failure.
const RankFunction finishing_ranks("finishing", [] {
  comm::World world = comm::init();
  const at::Tensor tensor = at::ones(4);
  world.group().all_reduce(tensor);
  if (world.rank() == Rank(0)) world.group().recv(tensor, 2);
  if (world.rank() == Rank(2)) world.group().send(tensor, 0);
  return 0;
});

TEST(CommDepartedRank, IsNoFailureIfNobodyWaitsForIt) {
  const RanksOutcome outcome = run_process_ranks("finishing", 3);
  EXPECT_TRUE(outcome.result.ok) << outcome.text();
}

const RankFunction next_operation_ranks("next_operation", [] {
  comm::World world = comm::init();
  if (world.rank() == Rank(1)) {
    world.fail("gave up");
    return 0;
  }
  // Waits until the monitor has detected the failure; the next operation must not start.
  try {
    for (;;) world.check();
  } catch (const PeerFailed&) {
  }
  try {
    world.group().isend(at::ones(1), 1, 0);
  } catch (const PeerFailed& e) {
    return report(e);
  }
  return 0;
});

TEST(CommThrowingRank, NextOperationRaisesImmediately) {
  const RanksOutcome outcome = run_process_ranks("next_operation", 2);
  const auto found = learned(outcome.lines[0]);
  ASSERT_TRUE(found.has_value()) << outcome.text();
  EXPECT_THAT(found->cause, HasSubstr("gave up"));
}

const RankFunction rebuild_ranks("rebuild", [] {
  comm::World world = comm::init();
  const comm::Group stale = world.group();
  for (int round = 0; round < 3; ++round) {
    const int thrower = round % world.size();
    // Waits until the other ranks have finished their operations, which its failure would interrupt.
    if (world.rank().value != thrower) world.group().isend(at::ones(1), thrower).detach();
    for (int other = 0; world.rank().value == thrower && other < world.size(); ++other)
      if (other != thrower) world.group().recv(at::zeros(1), other);
    try {
      if (world.rank().value == thrower) throw std::runtime_error("round " + std::to_string(round));
      world.group().barrier();
      throw std::logic_error("the barrier passed");
    } catch (const PeerFailed& e) {
      CHECK_SAME(e.peer().value, thrower);
      CHECK_THAT(e.cause().find("round " + std::to_string(round)) != std::string::npos);
    } catch (const std::runtime_error& e) {
      world.fail(e.what());
    }
    world.rebuild();
    const at::Tensor sum = at::full({1000}, 1.0);
    world.group().all_reduce(sum);
    CHECK_SAME(sum[0].item<double>(), world.size());
  }
  try {
    stale.barrier();
    throw std::logic_error("a failed group came back to life");
  } catch (const PeerFailed&) {
  }
  world.group().barrier();
  std::cout << "rebuilt" << std::endl;
  return 0;
});

TEST(CommRebuild, WorldWorksAfterFailuresWithLiveProcesses) {
  const RanksOutcome outcome = run_process_ranks("rebuild", 3);
  EXPECT_TRUE(outcome.result.ok) << outcome.text();
  for (const auto& lines : outcome.lines) EXPECT_THAT(lines, ::testing::Contains("rebuilt"));
}

const RankFunction late_ranks("late", [] {
  comm::InitOptions options;
  options.timeout = std::chrono::milliseconds(1500);
  comm::World world = init(options);
  const at::Tensor tensor = at::empty(64);
  if (world.rank() == Rank(0)) {
    try {
      world.group().recv(tensor, 1, 42);
    } catch (const TimeoutError& e) {
      std::cout << e.what() << std::endl;
      world.fail(e.message());
      return 0;
    }
  }
  try {
    for (;;) world.check();
  } catch (const PeerFailed& e) {
    return report(e);
  }
});

TEST(CommTimeout, ReportsWaitingRankPeerAndOperation) {
  const RanksOutcome outcome = run_process_ranks("late", 2);
  ASSERT_FALSE(outcome.lines[0].empty()) << outcome.text();
  EXPECT_THAT(
      outcome.lines[0][0],
      ContainsRegex("rank 0 waited [1-9][0-9.]* s, since [0-9]+:[0-9]+:[0-9]+ UTC, for rank 1: recv"));
  EXPECT_THAT(outcome.lines[0][0], HasSubstr("for rank 1: recv of 256 B with tag 42 on group world"));
  ASSERT_TRUE(learned(outcome.lines[1]).has_value()) << outcome.text();
}

const RankFunction absent_from_collective("absent_from_collective", [] {
  comm::World world = comm::init();
  world.group().barrier();
  if (world.rank() == Rank(1)) {
    try {
      for (;;) world.check();
    } catch (const PeerFailed& e) {
      return report(e);
    }
  }
  try {
    world.group().all_reduce(at::ones(16));
  } catch (const TimeoutError& e) {
    std::cout << e.what() << std::endl;
    world.fail(e.message());
  } catch (const PeerFailed& e) {
    return report(e);
  }
  return 5;
});

TEST(CommTimeout, OfCollectiveIncludesFlightRecordsOfAllRanks) {
  RanksOptions options;
  options.environment["PENSTOCK_TIMEOUT"] = "2";
  const RanksOutcome outcome = run_process_ranks("absent_from_collective", 3, options);
  EXPECT_THAT(outcome.text(),
              ContainsRegex("rank [02] waited 2\\.[0-9]+ s, since .*, for the other ranks of the "
                            "group: all_reduce of 64 B"));
  EXPECT_THAT(to_string(outcome.result), HasSubstr("rank 1 did not join all_reduce number"));
}

const RankFunction stopped_ranks("stopped", [] {
  comm::World world = comm::init();
  world.group().barrier();
  if (world.rank() == Rank(2)) raise(SIGSTOP);
  try {
    world.group().barrier();
  } catch (const PeerFailed& e) {
    return report(e);
  }
  return 0;
});

TEST(CommStoppedRank, IsDetectedByMissingHeartbeats) {
  RanksOptions options;
  options.environment["PENSTOCK_HEARTBEAT"] = "2";
  const RanksOutcome outcome = run_process_ranks("stopped", 3, options);
  for (const std::size_t rank : {0U, 1U}) {
    const auto found = learned(outcome.lines[rank]);
    ASSERT_TRUE(found.has_value()) << outcome.text();
    EXPECT_EQ(found->peer, 2);
    EXPECT_THAT(found->cause, HasSubstr("sent no heartbeat"));
  }
}

const RankFunction absent_ranks("absent", [] {
  comm::InitOptions options;
  options.join_timeout = std::chrono::milliseconds(1500);
  if (std::string(std::getenv("RANK")) == "2") return 0;  // never joins, and exits successfully
  try {
    comm::World world = init(options);
  } catch (const TimeoutError& e) {
    std::cout << e.what() << std::endl;
    return 0;
  }
  return 1;
});

TEST(CommJoin, ReportsRanksThatDidNotJoin) {
  const RanksOutcome outcome = run_process_ranks("absent", 4);
  ASSERT_FALSE(outcome.lines[0].empty()) << outcome.text();
  EXPECT_THAT(outcome.lines[0][0], HasSubstr("these ranks had not joined: 2"));
}

TEST(CommThreadRanks, ExceptionReachesPendingAndNextOperations) {
  const auto errors = comm::try_thread_ranks(3, [](comm::World& world) {
    if (world.rank() == Rank(2)) throw std::runtime_error("burst");
    world.group().barrier();
  });
  for (const std::size_t rank : {0U, 1U}) {
    ASSERT_TRUE(errors[rank]);
    try {
      std::rethrow_exception(errors[rank]);
    } catch (const PeerFailed& e) {
      EXPECT_EQ(e.peer(), Rank(2));
      EXPECT_EQ(e.cause(), "burst");
    }
  }
}

TEST(CommThreadRanks, RethrowCauseInsteadOfConsequences) {
  EXPECT_ERROR(comm::run_thread_ranks(4,
                                      [](comm::World& world) {
                                        if (world.rank() == Rank(1)) throw std::domain_error("the cause");
                                        world.group().barrier();
                                      }),
               std::domain_error, "the cause");
}

TEST(CommThreadRanks, CanBeRebuiltAfterFailure) {
  comm::run_thread_ranks(3, [](comm::World& world) {
    try {
      if (world.rank() == Rank(0)) throw std::runtime_error("once");
      world.group().barrier();
      throw std::logic_error("the barrier passed");
    } catch (const PeerFailed&) {
    } catch (const std::runtime_error& e) {
      world.fail(e.what());
    }
    world.rebuild();
    const at::Tensor sum = at::ones(1);
    world.group().all_reduce(sum);
    CHECK_SAME(sum.item<float>(), 3.0F);
  });
}

TEST(CommThreadRanks, ReportTimeouts) {
  comm::InitOptions options;
  options.timeout = std::chrono::milliseconds(50);
  const auto errors = try_thread_ranks(
      2,
      [](comm::World& world) {
        if (world.rank() == Rank(0)) world.group().recv(at::empty(1), 1);
      },
      options);
  ASSERT_TRUE(errors[0]);
  EXPECT_ERROR(std::rethrow_exception(errors[0]), TimeoutError, "rank 0 waited");
}

TEST(CommThreadRanks, ReportMessageOfWrongSize) {
  const auto errors = comm::try_thread_ranks(2, [](comm::World& world) {
    if (world.rank() == Rank(0)) world.group().send(at::ones(3), 1);
    if (world.rank() == Rank(1)) world.group().recv(at::ones(4), 0);
  });
  ASSERT_TRUE(errors[1]);
  EXPECT_ERROR(std::rethrow_exception(errors[1]), ShapeError, "from rank 0 of the group, expected");
}

}  // namespace
}  // namespace penstock::test
