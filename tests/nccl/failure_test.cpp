// Failures over NCCL: every rank learns of them within the documented time, and the process survives.
#include "nccl/ranks.h"
#include "support/check.h"

#include <penstock/base/error.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>

namespace penstock::test {
namespace {

using testing::HasSubstr;

// The documented time, in seconds. A complete run takes 2 to 4 s on two busy cores.
constexpr double kLimit = 5.0;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int report(const PeerFailed& e) {
  std::cout << "failed " << e.peer().value << " " << std::to_string(seconds_now()) << " " << e.cause()
            << std::endl;
  return 7;
}

//! The rank and the time in a line of `report`.
std::optional<std::pair<int, double>> reported(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    if (!line.starts_with("failed ")) continue;
    std::istringstream text(line.substr(7));
    std::pair<int, double> found;
    text >> found.first >> found.second;
    return found;
  }
  return std::nullopt;
}

//! Sends, receives, reduces and waits for the device, forever.
const RankFunction loop_ranks("nccl_loop", [] {
  comm::World world = init_on_device();
  const comm::Group& group = world.group();
  const int n = group.size(), me = group.rank();
  const at::Tensor mine = at::ones({500}, world.device()), got = at::empty({500}, world.device());
  try {
    for (int i = 0;; ++i) {
      if (me == 0) group.isend(mine, 1);
      comm::Work receive = group.irecv(got, (me + n - 1) % n);
      if (me != 0) group.isend(mine, (me + 1) % n);
      receive.wait();
      group.all_reduce(got, comm::ReduceOp::Avg);
      got.sum().item<float>();  // the host waits for the device
      if (i % 5 == 0) std::cout << "progress " << i << std::endl;
    }
  } catch (const PeerFailed& e) {
    return report(e);
  }
});

class NcclKilledRank : public testing::TestWithParam<bool> {};

TEST_P(NcclKilledRank, RaisesPeerFailedOnEveryOtherRank) {
  constexpr int ranks = 3, victim = 1;
  std::vector<pid_t> pids;
  double killed_at = 0;
  int lines_left = 6;
  RanksOptions options;
  if (GetParam()) options.environment["FAKE_NCCL_SILENT"] = "1";
  options.on_start = [&](const std::vector<pid_t>& started) { pids = started; };
  options.on_line = [&](Rank, comm::OutputStream, std::string_view line) {
    if (!line.starts_with("progress") || --lines_left != 0) return;
    killed_at = seconds_now();
    kill(pids[victim], SIGKILL);
  };
  const RanksOutcome outcome = run_fake_cuda_ranks("nccl_loop", ranks, options);
  for (const std::size_t rank : {0U, 2U}) {
    const auto found = reported(outcome.lines[rank]);
    ASSERT_TRUE(found.has_value()) << outcome.text();
    EXPECT_EQ(found->first, victim) << outcome.text();
    EXPECT_LT(found->second - killed_at, kLimit) << outcome.text();
    EXPECT_EQ(outcome.result.ranks[rank].code, 7) << outcome.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Silent, NcclKilledRank, testing::Bool(), testing::PrintToStringParamName());

const RankFunction late_ranks("nccl_late", [] {
  const bool is_late = std::string(std::getenv("RANK")) == "1";
  comm::World world = init_on_device(std::chrono::seconds(is_late ? 120 : 2));
  const at::Tensor tensor = at::ones({4}, world.device()), token = at::ones(1);
  world.group().all_reduce(tensor);
  try {
    if (!is_late) {
      world.group().all_reduce(tensor);
      tensor.sum().item<float>();  // ends when the communicator is aborted
      world.check();
    } else {
      world.group().recv(token, 0);  // never sent
    }
  } catch (const TimeoutError& e) {
    std::cout << e.what() << std::endl;
    return 5;
  } catch (const PeerFailed& e) {
    return report(e);
  }
  return 0;
});

TEST(NcclLateRank, IsATimeout) {
  const RanksOutcome outcome = run_fake_cuda_ranks("nccl_late", 2);
  EXPECT_THAT(outcome.text(), HasSubstr("rank 0 waited "));
  EXPECT_EQ(outcome.result.ranks[0].code, 5) << outcome.text();
  EXPECT_EQ(outcome.result.ranks[1].code, 7) << outcome.text();
}

const RankFunction departing_ranks("nccl_departing", [] {
  comm::World world = init_on_device(std::chrono::seconds(3));
  const at::Tensor tensor = at::ones({4}, world.device());
  try {
    for (int step = world.rank() == Rank(1) ? 1 : 0; step < 3; ++step) {
      world.group().all_reduce(tensor);
      tensor.sum().item<float>();
    }
    world.check();
  } catch (const PeerFailed& e) {
    return report(e);
  }
  return 0;
});

TEST(NcclDepartedRank, IsNamed) {
  const RanksOutcome outcome = run_fake_cuda_ranks("nccl_departing", 2);
  EXPECT_EQ(outcome.result.ranks[1].code, 0) << outcome.text();
  const auto found = reported(outcome.lines[0]);
  ASSERT_TRUE(found.has_value()) << outcome.text();
  EXPECT_EQ(found->first, 1);
}

// All ranks survive the failure of one and go on in a new world.
const RankFunction rebuilding_ranks("nccl_rebuild", [] {
  comm::World world = init_on_device();
  const int n = world.size();
  const at::Tensor tensor = at::ones({4}, world.device());
  try {
    world.group().barrier();  // all ranks have joined
    // Does not wait for the other ranks: they may still be in it when rank 1 fails.
    world.group().all_reduce(tensor);
    if (world.rank() == Rank(1)) world.fail("the valve is stuck");
    for (;;) {
      world.group().all_reduce(tensor);
      tensor.sum().item<float>();
    }
  } catch (const PeerFailed& e) {
    std::cout << e.what() << std::endl;
  }
  world.rebuild();
  const at::Tensor again = at::ones({4}, world.device());
  world.group().all_reduce(again);
  CHECK_TENSORS(again, at::full({4}, static_cast<double>(n), world.device()));
  return 0;
});

TEST(NcclRebuild, ContinuesInNewWorldAndExitsCleanly) {
  const RanksOutcome outcome = run_fake_cuda_ranks("nccl_rebuild", 3);
  EXPECT_TRUE(outcome.result.ok) << outcome.text();
  EXPECT_THAT(outcome.text(), HasSubstr("the valve is stuck"));
}

// A rank that does not create a group is named after the join timeout.
const RankFunction absent_ranks("nccl_absent", [] {
  use_host_kernels();
  comm::InitOptions options;
  options.device = c10::kCUDA;
  options.join_timeout = std::chrono::seconds(5);
  comm::World world = comm::init(options);
  const at::Tensor token = at::ones(1);
  if (world.rank() == Rank(1)) {
    try {
      world.group().recv(token, 0);
    } catch (const PeerFailed&) {
      return 7;
    }
    return 0;
  }
  try {
    world.group().split(0);
  } catch (const CommError& e) {
    std::cout << e.what() << std::endl;
    return 5;
  }
  return 0;
});

TEST(NcclConnect, EndsIfARankDoesNotCome) {
  RanksOptions options;
  options.environment["PENSTOCK_TIMEOUT"] = "5";
  const RanksOutcome outcome = run_fake_cuda_ranks("nccl_absent", 2, options);
  EXPECT_EQ(outcome.result.ranks[0].code, 5) << outcome.text();
}

}  // namespace
}  // namespace penstock::test
