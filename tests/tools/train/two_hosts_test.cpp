// Training on two hosts: losses match those of one host, and failures are reported on both.
#include "support/simulated_hosts.h"
#include "tools/train/fault_injection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <thread>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Two hosts that train together, and their directories.
class TrainingHosts {
 public:
  const std::string& problem() const { return hosts_.problem(); }
  void disconnect() const { hosts_.disconnect(0); }

  // `penstock run … -- penstock train …` on one of the hosts, each with one rank.
  std::vector<std::string> line(int host, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {PENSTOCK_TOOL,      "run",
                                      "--ranks=1",        "--nodes=2",
                                      "--node-rank",      std::to_string(host),
                                      "--rendezvous",     SimulatedHosts::address(0) + ":29500",
                                      "--grace=5",        "--",
                                      PENSTOCK_TOOL,      "train",
                                      "--pp=2",           "--layers=2",
                                      "--width=8",        "--heads=1",
                                      "--seq=6",          "--batch=4",
                                      "--microbatches=2", "--sample=0"};
    words.insert(words.end(), more.begin(), more.end());
    return hosts_.on(host, words);
  }
  std::vector<std::string> settings(int host, const std::string& faults) const {
    std::filesystem::create_directories(directory_of(host));
    return {"PENSTOCK_FAULT=" + faults, "TMPDIR=" + directory_of(host)};
  }
  // Whether the launcher of that host has found the other and starts its rank: it has created its directory.
  bool launches(int host) const { return !std::filesystem::is_empty(directory_of(host)); }
  std::string left() const {
    std::string all = processes_with(dir_.path());
    for (const int host : {0, 1})
      for (const auto& entry : std::filesystem::directory_iterator(directory_of(host)))
        all += entry.path().string() + "\n";
    return all;
  }
  std::string operator/(const std::string& name) const { return dir_ / name; }

 private:
  std::string directory_of(int host) const { return dir_ / ("tmp" + std::to_string(host)); }

  TempDir dir_;
  SimulatedHosts hosts_{2};
};

class ToolTrainTwoHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.problem().empty()) GTEST_SKIP() << hosts_.problem();
  }
  TrainingHosts hosts_;
};

TEST_F(ToolTrainTwoHosts, MatchLossesOfOneHost) {
  const FaultRun alone = run_with_faults("", {}, hosts_ / "alone");
  ASSERT_EQ(alone.losses.size(), 6U) << alone.outcome.err;
  const std::vector<std::string> more{"--steps=6", "--log-json=" + (hosts_ / "log"),
                                      "--checkpoint=" + (hosts_ / "saved"), "--checkpoint-every=2"};
  Program first(hosts_.line(0, more), hosts_.settings(0, "")),
      second(hosts_.line(1, more), hosts_.settings(1, ""));
  const Outcome zero = first.finish(), one = second.finish();
  EXPECT_EQ(zero.code, 0) << zero.err;
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(losses_of(hosts_ / "log"), alone.losses);
  EXPECT_EQ(hosts_.left(), "");
}

TEST_F(ToolTrainTwoHosts, KilledRankIsReportedOnBothAndRunRestarts) {
  const FaultRun alone = run_with_faults("", {}, hosts_ / "alone");
  const std::string faults = "kill rank=1 step=4 action=1F1";
  for (const bool restarts : {false, true}) {
    const std::string home = hosts_ / (restarts ? "again" : "once");
    const auto words = [&](int host) {
      std::vector<std::string> all =
          hosts_.line(host, {"--steps=6", "--log-json=" + home + "/log", "--checkpoint=" + home + "/saved",
                             "--checkpoint-every=2"});
      if (restarts) all.insert(std::find(all.begin(), all.end(), "--grace=5"), "--max-restarts=1");
      return all;
    };
    const auto start = Clock::now();
    Program first(words(0), hosts_.settings(0, faults)), second(words(1), hosts_.settings(1, faults));
    const Outcome zero = first.finish(), one = second.finish();
    EXPECT_LT(seconds_since(start), bound(1, alone)) << zero.err << one.err;
    EXPECT_EQ(zero.code, restarts ? 0 : 1) << zero.err;
    EXPECT_EQ(one.code, restarts ? 0 : 1) << one.err;
    EXPECT_THAT(zero.err,
                HasSubstr("rank 1 failed first, on another node: its process was killed by signal 9"));
    EXPECT_THAT(one.err, AllOf(HasSubstr("rank 1 failed first: it was killed by signal 9 (SIGKILL)"),
                               HasSubstr("rank 1 was in step 4, stage 1, action 1F1")));
    EXPECT_EQ(hosts_.left(), "");
    if (restarts) {
      EXPECT_EQ(losses_of(home + "/log"), alone.losses);
    }
  }
}

TEST_F(ToolTrainTwoHosts, LostConnectionEndsBothWithReason) {
  const FaultRun alone = run_with_faults("", {}, hosts_ / "alone");
  const std::vector<std::string> more{"--steps=1000000", "--log-json=" + (hosts_ / "log")};
  Program first(hosts_.line(0, more), hosts_.settings(0, "")),
      second(hosts_.line(1, more), hosts_.settings(1, ""));
  while (!first.ended() && first.out().find("step 3/") == std::string::npos) std::this_thread::yield();
  ASSERT_FALSE(first.ended()) << first.finish().err;
  hosts_.disconnect();
  const auto start = Clock::now();
  const Outcome zero = first.finish(), one = second.finish();
  EXPECT_LT(seconds_since(start), bound(1, alone)) << zero.err << one.err;
  EXPECT_EQ(zero.code, 1);
  EXPECT_EQ(one.code, 1);
  EXPECT_THAT(zero.err, AllOf(HasSubstr("rank 1 failed first, on another node: sent no heartbeat"),
                              HasSubstr("rank 0 was in step ")));
  EXPECT_THAT(one.err, AllOf(HasSubstr("node 0 cannot be reached"), HasSubstr("rank 1 was in step ")));
  EXPECT_EQ(hosts_.left(), "");
  std::printf("both ended %.1f s after the connection was lost\n", seconds_since(start));
}

// Also while the ranks start, connect and set up, before any rank monitors another.
TEST_F(ToolTrainTwoHosts, ConnectionLostAtAnyTimeEndsBoth) {
  constexpr unsigned seed = 11;
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const FaultRun alone = run_with_faults("", {}, hosts_ / "alone");
  struct Pair {
    TrainingHosts hosts;
    std::unique_ptr<Program> programs[2];
    std::optional<Clock::time_point> launched, disconnected;
    double delay = 0;
  };
  std::array<Pair, 6> pairs;
  for (Pair& pair : pairs) {
    pair.delay = 2 * alone.seconds * (random() % 1000) / 1000;
    for (const int host : {0, 1})
      pair.programs[host] = std::make_unique<Program>(
          pair.hosts.line(host, {"--steps=1000000", "--log-json=" + (pair.hosts / "log")}),
          pair.hosts.settings(host, ""));
  }
  for (std::size_t connected = pairs.size(); connected > 0; std::this_thread::yield()) {
    for (Pair& pair : pairs) {
      ASSERT_FALSE(pair.programs[0]->ended() && !pair.disconnected) << pair.programs[0]->finish().err;
      if (!pair.launched && pair.hosts.launches(0) && pair.hosts.launches(1)) pair.launched = Clock::now();
      if (!pair.launched || pair.disconnected || seconds_since(*pair.launched) < pair.delay) continue;
      pair.hosts.disconnect();
      pair.disconnected = Clock::now();
      --connected;
    }
  }
  for (Pair& pair : pairs) {
    const Outcome zero = pair.programs[0]->finish(), one = pair.programs[1]->finish();
    const double seconds = seconds_since(*pair.disconnected);
    SCOPED_TRACE("disconnected " + std::to_string(pair.delay) + " s after the launch\n" + zero.err + "\n" +
                 one.err);
    EXPECT_LT(seconds, bound(1, alone));
    EXPECT_EQ(zero.code, 1);
    EXPECT_EQ(one.code, 1);
    // Detected by the monitors of the ranks, by the launchers, or by a group that is connecting.
    EXPECT_THAT(zero.err, ContainsRegex("rank 1 failed first, on another node: sent no heartbeat|"
                                        "node 1 sent no heartbeat|rank 1 does not answer at"));
    EXPECT_THAT(one.err, HasSubstr("node 0 cannot be reached"));
    EXPECT_THAT(zero.err + one.err, Not(HasSubstr("frame #")));  // the message of libtorch would hide ours
    EXPECT_EQ(pair.hosts.left(), "");
    std::printf("disconnected after %.1f s, both ended %.1f s later\n", pair.delay, seconds);
  }
}

}  // namespace
}  // namespace penstock::test
