// Training over two hosts: the losses of one, and failures that are known on both.
#include "faults.h"
#include "support/two_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Hosts : public testing::Test {
 protected:
  void SetUp() override {
    hosts_.emplace();
    if (!hosts_->problem().empty()) GTEST_SKIP() << hosts_->problem();
  }

  // `penstock run … -- penstock train …` of one of the hosts, each with one rank.
  std::vector<std::string> line(int host, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {PENSTOCK_TOOL,      "run",
                                      "--ranks=1",        "--nodes=2",
                                      "--node-rank",      std::to_string(host),
                                      "--rendezvous",     TwoHosts::address(0) + ":29500",
                                      "--grace=5",        "--",
                                      PENSTOCK_TOOL,      "train",
                                      "--pp=2",           "--layers=2",
                                      "--width=8",        "--heads=1",
                                      "--seq=6",          "--batch=4",
                                      "--microbatches=2", "--sample=0"};
    words.insert(words.end(), more.begin(), more.end());
    return hosts_->on(host, words);
  }
  std::vector<std::string> settings(int host, const std::string& faults) const {
    const std::string place = dir_ / ("tmp" + std::to_string(host));
    std::filesystem::create_directories(place);
    return {"PENSTOCK_FAULT=" + faults, "TMPDIR=" + place};
  }
  std::string left() const {
    std::string all = processes_with(dir_.path());
    for (const char* name : {"tmp0", "tmp1"})
      for (const auto& entry : std::filesystem::directory_iterator(dir_ / name))
        all += entry.path().string() + "\n";
    return all;
  }

  TempDir dir_;
  std::optional<TwoHosts> hosts_;
};

TEST_F(Hosts, TrainWithTheLossesOfOne) {
  const FaultRun alone = run_with_faults("", {}, dir_ / "alone");
  ASSERT_EQ(alone.losses.size(), 6U) << alone.outcome.err;
  const std::vector<std::string> more{"--steps=6", "--log-json=" + (dir_ / "log"),
                                      "--checkpoint=" + (dir_ / "saved"), "--checkpoint-every=2"};
  Program first(line(0, more), settings(0, "")), second(line(1, more), settings(1, ""));
  const Outcome zero = first.finish(), one = second.finish();
  EXPECT_EQ(zero.code, 0) << zero.err;
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(losses_of(dir_ / "log"), alone.losses);
  EXPECT_EQ(left(), "");
}

TEST_F(Hosts, ARankThatIsKilledOnOneIsNamedOnBothAndTheRunGoesOn) {
  const FaultRun alone = run_with_faults("", {}, dir_ / "alone");
  const std::string faults = "kill rank=1 step=4 action=1F1";
  for (const bool restarts : {false, true}) {
    const std::string home = dir_ / (restarts ? "again" : "once");
    const auto words = [&](int host) {
      std::vector<std::string> all = line(host, {"--steps=6", "--log-json=" + home + "/log",
                                                 "--checkpoint=" + home + "/saved", "--checkpoint-every=2"});
      if (restarts) all.insert(std::find(all.begin(), all.end(), "--grace=5"), "--max-restarts=1");
      return all;
    };
    const auto start = Clock::now();
    Program first(words(0), settings(0, faults)), second(words(1), settings(1, faults));
    const Outcome zero = first.finish(), one = second.finish();
    EXPECT_LT(seconds_since(start), bound(1, alone)) << zero.err << one.err;
    EXPECT_EQ(zero.code, restarts ? 0 : 1) << zero.err;
    EXPECT_EQ(one.code, restarts ? 0 : 1) << one.err;
    EXPECT_THAT(zero.err,
                HasSubstr("rank 1 failed first, on another node: its process was killed by signal 9"));
    EXPECT_THAT(one.err, AllOf(HasSubstr("rank 1 failed first: it was killed by signal 9 (SIGKILL)"),
                               HasSubstr("rank 1 was in step 4, stage 1, action 1F1")));
    EXPECT_EQ(left(), "");
    if (restarts) {
      EXPECT_EQ(losses_of(home + "/log"), alone.losses);
    }
  }
}

TEST_F(Hosts, AWireThatIsCutEndsBothAndSaysSo) {
  const FaultRun alone = run_with_faults("", {}, dir_ / "alone");
  const std::vector<std::string> more{"--steps=1000000"};
  Program first(line(0, more), settings(0, "")), second(line(1, more), settings(1, ""));
  while (!first.ended() && first.out().find("step 3/") == std::string::npos) std::this_thread::yield();
  ASSERT_FALSE(first.ended()) << first.finish().err;
  hosts_->cut();
  const auto start = Clock::now();
  const Outcome zero = first.finish(), one = second.finish();
  EXPECT_LT(seconds_since(start), bound(1, alone)) << zero.err << one.err;
  EXPECT_EQ(zero.code, 1);
  EXPECT_EQ(one.code, 1);
  EXPECT_THAT(zero.err, AllOf(HasSubstr("rank 1 failed first, on another node: gave no sign of life"),
                              HasSubstr("rank 0 was in step ")));
  EXPECT_THAT(one.err, AllOf(HasSubstr("node 0 cannot be reached"), HasSubstr("rank 1 was in step ")));
  EXPECT_EQ(left(), "");
  std::printf("both ended %.1f s after the cut\n", seconds_since(start));
}

}  // namespace
}  // namespace penstock::test
