// Faults of every kind at every location: the command ends and reports them, or restarts and ends with the
// losses of a fault-free run.
#include "tools/train/fault_injection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <filesystem>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::size_t count_of(const std::string& part, const std::string& text) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Every kind of fault at every step on each of the two ranks: all faults of a step and rank in one run that
// restarts after each. Only Gloo has connections that can be cut.
TEST(ToolTrainFaults, EveryKindAtEveryStepOnEachRankKeepsLosses) {
  const TempDir dir;
  const std::vector<std::pair<std::string, std::vector<std::string>>> kinds_of_backends{
      {"shm", {"kill", "throw", "stop", "exit"}}, {"gloo", {"kill", "cut"}}};
  const std::vector<std::string> moments{"at=start",
                                         "at=setup",
                                         "step=3 action=<F1",
                                         "step=5 action=<B0",
                                         "step=5 at=update",
                                         "step=4 at=checkpoint",
                                         "at=end"};
  std::vector<FaultCase> cases{{"", {}, dir / "fault_free"}};
  std::vector<int> counts{0};
  const auto add = [&](std::string moment, const std::string& rank, const std::string& backend,
                       const std::vector<std::string>& kinds) {
    std::string faults;
    int count = 0;
    if (const auto stage = moment.find('<'); stage != std::string::npos) moment.replace(stage, 1, rank);
    for (const std::string& kind : kinds) {
      if (kind == "cut" && moment == "at=start") continue;  // there is no connection to break yet
      faults += kind + " rank=" + rank + " " + moment + " attempt=" + std::to_string(count++) + "; ";
    }
    const std::string name = std::to_string(cases.size());
    cases.push_back(
        {faults, {"--max-restarts=" + std::to_string(count), "--backend=" + backend}, dir / name});
    counts.push_back(count);
  };
  for (const auto& [backend, kinds] : kinds_of_backends)
    for (const std::string& moment : moments)
      for (const char* const rank : {"0", "1"}) add(moment, rank, backend, kinds);
  const std::vector<FaultRun> runs = run_with_faults(cases, kAtOnce);
  const FaultRun& fault_free = runs.front();
  ASSERT_EQ(fault_free.outcome.code, 0) << fault_free.outcome.err;
  ASSERT_EQ(fault_free.losses.size(), 6U);
  for (std::size_t i = 1; i < runs.size(); ++i) {
    SCOPED_TRACE(cases[i].faults);
    const FaultRun& run = runs[i];
    const std::string restarts = std::to_string(counts[i]), rank = i % 2 == 1 ? "0" : "1";
    EXPECT_EQ(run.outcome.code, 0) << run.outcome.err;
    EXPECT_EQ(run.losses, fault_free.losses);
    EXPECT_EQ(run.left, "");
    EXPECT_THAT(run.outcome.err, HasSubstr("restarting (" + restarts + " of " + restarts + ")"));
    EXPECT_EQ(count_of("rank " + rank + " failed first", run.outcome.err), counts[i]) << run.outcome.err;
    EXPECT_LT(run.seconds, bound(counts[i], fault_free)) << run.outcome.err;
    std::printf("%d faults in %.1f s: %s\n", counts[i], run.seconds, cases[i].faults.c_str());
  }
  std::printf("a concurrent fault-free run: %.1f s\n", fault_free.seconds);
}

TEST(ToolTrainFaults, TwentyRandomFaultsKeepLosses) {
  soak(7, 4, 5);
}

TEST(ToolTrainFaults, AreReportedWithRankStepStageActionAndCause) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"throw rank=1 step=3 action=1F1",
       {"rank 1 failed first", "rank 1 was in step 3, stage 1, action 1F1", "injected fault in step 3"}},
      {"kill rank=1 step=4 action=1B0",
       {"rank 1 failed first: it was killed by signal 9 (SIGKILL)",
        "rank 1 was in step 4, stage 1, action 1B0"}},
      {"exit rank=0 step=2 action=0F1",
       {"rank 0 failed first: it exited with code 3", "rank 0 was in step 2, stage 0, action 0F1"}},
      // The other ranks know most about a rank that is alive but does not answer.
      {"stop rank=0 step=3 action=0F1",
       {"rank 0 failed first: ", " for 15", "rank 0 was in step 3, stage 0, action 0F1"}},
      // It continues until it needs the others.
      {"cut rank=1 step=3 action=1F1", {"rank 1 failed first", "rank 1 was in step 3, stage 1, action 1"}},
      {"stall rank=1 step=3 action=1F1", {"rank 0 waited 10", "rank 1 was in step 3, stage 1, action 1F1"}},
      {"stall rank=1 at=start", {"these ranks had not joined: 1", "rank 1 was in start"}},
      {"kill rank=0 at=start",
       {"rank 0 failed first: it was killed by signal 9 (SIGKILL)", "rank 0 was in start"}},
      {"cut rank=0 at=setup", {"rank 0 failed first", "rank 0 was in setup"}},
      {"throw rank=1 step=2 at=checkpoint", {"rank 1 failed first", "rank 1 was in step 2, checkpoint"}},
      {"nan rank=1 step=3 action=1F1",
       {"rank 1", "step 3", "parameter 'token.weight' contains nan", "stage 1", "microbatch 0"}},
      {"cut rank=1 at=end", {"rank 1 failed first", "rank 1 was in step 6, end"}},
  };
  const TempDir dir;
  std::vector<FaultCase> lines{{"", {}, dir / "fault_free"}};
  for (const auto& [fault, texts] : cases) {
    lines.push_back({fault, {}, dir / std::to_string(lines.size())});
    if (fault.starts_with("stall")) lines.back().words = {"--timeout=10"};
    if (fault.starts_with("cut")) lines.back().words = {"--backend=gloo"};
  }
  const std::vector<FaultRun> runs = run_with_faults(lines, kAtOnce);
  for (std::size_t i = 1; i < runs.size(); ++i) {
    const auto& [fault, texts] = cases[i - 1];
    const FaultRun& run = runs[i];
    SCOPED_TRACE(fault);
    EXPECT_EQ(run.outcome.code, 1);
    for (const std::string& text : texts) EXPECT_THAT(run.outcome.err, HasSubstr(text));
    // One cause, the progress of the ranks, and one hint; details are in a file.
    EXPECT_LE(count_of("\n", run.outcome.err), 3U) << run.outcome.err;
    EXPECT_THAT(run.outcome.err, AllOf(testing::StartsWith("penstock: error: "), HasSubstr("\nhint: "),
                                       testing::Not(HasSubstr("nearby actions in the schedule"))));
    const std::string details = lines[i].directory + "/saved/failure.log";
    if (std::filesystem::exists(details)) {
      EXPECT_THAT(slurp(details), AllOf(HasSubstr("\nrank 0 "), HasSubstr("\nrank 1 ")));
    }
    EXPECT_EQ(run.left, "");
    EXPECT_LT(run.seconds, bound(1, runs.front())) << run.outcome.err;
  }
}

TEST(ToolTrainFaults, FailedCheckpointStopsOrWarnsAsConfigured) {
  const TempDir dir;
  [[maybe_unused]] const int made = std::system(("touch " + (dir / "file")).c_str());
  const std::string bad = "--checkpoint=" + (dir / "file") + "/saved";
  const FaultRun stops = run_with_faults("", {bad}, dir / "a");
  EXPECT_EQ(stops.outcome.code, 2);
  EXPECT_THAT(stops.outcome.err, HasSubstr("file/saved"));
  const FaultRun warns = run_with_faults("", {bad, "--on-storage-error=warn"}, dir / "b");
  EXPECT_EQ(warns.outcome.code, 0) << warns.outcome.err;
  EXPECT_THAT(warns.outcome.out, HasSubstr("training continues"));
  EXPECT_EQ(warns.losses.size(), 6U);
}

// Reads from the terminal until the text appears or the other side closes.
bool read_until(int terminal, const std::string& text, std::string& all) {
  char buffer[4096];
  while (all.find(text) == std::string::npos) {
    const auto count = read(terminal, buffer, sizeof buffer);
    if (count <= 0) return false;
    all.append(buffer, static_cast<std::size_t>(count));
  }
  return true;
}

// What was drawn over the same line: the bars between two newlines.
std::vector<std::string> bars_of(const std::string& shown) {
  static const std::string begin = "\r\x1b[K";
  std::vector<std::string> bars;
  for (auto at = shown.find(begin); at != std::string::npos; at = shown.find(begin, at + 1)) {
    const auto from = at + begin.size();
    bars.push_back(shown.substr(from, shown.find_first_of("\r\n", from) - from));
  }
  return bars;
}

TEST(ToolTrainTerminal, ShowsProgressBarAndControlCCleansUp) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "tmp");
  int terminal = -1;
  constexpr unsigned short columns = 60;
  const winsize size{.ws_row = 20, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  ASSERT_GE(child, 0);
  if (child == 0) {
    setenv("TERM", "xterm", 1);
    setenv("TMPDIR", (dir / "tmp").c_str(), 1);
    const std::string log = "--log-json=" + (dir / "log"), saved = "--checkpoint=" + (dir / "saved");
    execl(PENSTOCK_TOOL, "penstock", "train", "--steps=100000", "--layers=1", "--width=8", "--heads=1",
          "--seq=6", "--checkpoint-every=2", log.c_str(), saved.c_str(), nullptr);
    _exit(127);
  }
  std::string shown;
  EXPECT_TRUE(read_until(terminal, "step 9/100000", shown)) << shown;
  // One line that is redrawn, never long enough for the terminal to wrap it.
  std::vector<std::string> bars = bars_of(shown);
  ASSERT_GE(bars.size(), 9U) << shown;
  bars.resize(8);
  for (std::size_t i = 0; i < bars.size(); ++i) {
    EXPECT_THAT(bars[i], AllOf(testing::StartsWith("[>"), HasSubstr(" left"),
                               HasSubstr("step " + std::to_string(i + 1) + "/100000")));
    EXPECT_EQ(bars[i].size(), columns - 1U) << "cut to the terminal's width";
  }
  EXPECT_EQ(shown.find('\n', shown.find("step 1/100000")), std::string::npos) << shown;
  ASSERT_EQ(write(terminal, "\x03", 1), 1);
  read_until(terminal, "\x04 never", shown);  // to its end
  EXPECT_TRUE(shown.ends_with("\r\n")) << "the shell's next words would stand on the bar: " << shown;
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  close(terminal);
  EXPECT_EQ(processes_with(dir.path()), "");
  EXPECT_TRUE(std::filesystem::is_empty(dir / "tmp"));
}

}  // namespace
}  // namespace penstock::test
