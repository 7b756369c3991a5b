// Faults of every kind and place: the command ends and names them, or restarts and ends with the losses of a
// quiet run.
#include "faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <filesystem>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Every kind at every moment, on one rank or the other: all faults of a moment in one run that starts again
// after each. Silence is found after 3 s here and not after 15, so that the test does not wait.
TEST(Faults, OfEveryKindAtEveryMomentCostNothingButTime) {
  const TempDir dir;
  const FaultRun quiet = run_with_faults("", {}, dir / "quiet");
  ASSERT_EQ(quiet.outcome.code, 0) << quiet.outcome.err;
  ASSERT_EQ(quiet.losses.size(), 6U);
  const std::vector<std::string> kinds{"kill", "throw", "stop", "exit", "cut"};
  const std::vector<std::string> moments{"at=start",
                                         "at=setup",
                                         "step=3 action=<F1",
                                         "step=5 action=<B0",
                                         "step=5 at=update",
                                         "step=4 at=checkpoint",
                                         "at=end"};
  for (std::size_t m = 0; m < moments.size(); ++m) {
    std::string faults;
    int count = 0;
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      if (kinds[k] == "cut" && moments[m] == "at=start") continue;  // there is nothing to cut yet
      const std::string rank = std::to_string((k + m) % 2);
      std::string moment = moments[m];
      if (const auto stage = moment.find('<'); stage != std::string::npos) moment.replace(stage, 1, rank);
      faults += kinds[k] + " rank=" + rank + " " + moment + " attempt=" + std::to_string(count++) + "; ";
    }
    SCOPED_TRACE(faults);
    const std::string restarts = std::to_string(count);
    const FaultRun run = run_with_faults(faults, {"--max-restarts=" + restarts}, dir / std::to_string(m),
                                         {"PENSTOCK_HEARTBEAT=3"});
    EXPECT_EQ(run.outcome.code, 0) << run.outcome.err;
    EXPECT_EQ(run.losses, quiet.losses);
    EXPECT_EQ(run.left, "");
    EXPECT_THAT(run.outcome.err, HasSubstr("restarting (" + restarts + " of " + restarts + ")"));
    EXPECT_LT(run.seconds, bound(count, quiet)) << run.outcome.err;
    std::printf("%s: %d faults in %.1f s\n", moments[m].c_str(), count, run.seconds);
  }
}

TEST(Faults, TwentyAtRandomChangeNothing) {
  soak(7, 4, 5);
}

TEST(Faults, AreNamedWithRankStepStageActionAndCause) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"throw rank=1 step=3 action=1F1",
       {"rank 1 failed first", "rank 1 was in step 3, stage 1, action 1F1", "a fault was asked for"}},
      {"kill rank=1 step=4 action=1B0",
       {"rank 1 failed first: it was killed by signal 9 (SIGKILL)",
        "rank 1 was in step 4, stage 1, action 1B0"}},
      {"exit rank=0 step=2 action=0F1",
       {"rank 0 failed first: it exited with code 3", "rank 0 was in step 2, stage 0, action 0F1"}},
      // Of those that live and do not answer the others know most.
      {"stop rank=0 step=3 action=0F1",
       {"rank 0 failed first: ", " for 15", "rank 0 was in step 3, stage 0, action 0F1"}},
      // It goes on until it needs the others.
      {"cut rank=1 step=3 action=1F1", {"rank 1 failed first", "rank 1 was in step 3, stage 1, action 1"}},
      {"stall rank=1 step=3 action=1F1", {"rank 0 waited 4", "rank 1 was in step 3, stage 1, action 1F1"}},
      {"kill rank=0 at=start",
       {"rank 0 failed first: it was killed by signal 9 (SIGKILL)", "rank 0 was in start"}},
      {"cut rank=0 at=setup", {"rank 0 failed first", "rank 0 was in setup"}},
      {"throw rank=1 step=2 at=checkpoint", {"rank 1 failed first", "rank 1 was in step 2, checkpoint"}},
      {"nan rank=1 step=3 action=1F1",
       {"rank 1", "step 3", "first seen in the output", "stage 1", "microbatch 0"}},
      {"cut rank=1 at=end", {"rank 1 failed first", "rank 1 was in step 6, end"}},
  };
  const TempDir dir;
  const FaultRun quiet = run_with_faults("", {}, dir / "quiet");
  int number = 0;
  for (const auto& [fault, texts] : cases) {
    SCOPED_TRACE(fault);
    const bool stall = fault.starts_with("stall");
    const FaultRun run =
        run_with_faults(fault, stall ? std::vector<std::string>{"--timeout=4"} : std::vector<std::string>{},
                        dir / std::to_string(number++));
    EXPECT_EQ(run.outcome.code, 1);
    for (const std::string& text : texts) EXPECT_THAT(run.outcome.err, HasSubstr(text));
    EXPECT_EQ(run.left, "");
    EXPECT_LT(run.seconds, bound(1, quiet)) << run.outcome.err;
  }
}

TEST(Faults, NoPlaceForCheckpointsStopsOrWarnsAsAsked) {
  const TempDir dir;
  [[maybe_unused]] const int made = std::system(("touch " + (dir / "file")).c_str());
  const std::string bad = "--checkpoint=" + (dir / "file") + "/saved";
  const FaultRun stops = run_with_faults("", {bad}, dir / "a");
  EXPECT_EQ(stops.outcome.code, 1);
  EXPECT_THAT(stops.outcome.err, HasSubstr("file/saved"));
  const FaultRun warns = run_with_faults("", {bad, "--on-storage-error=warn"}, dir / "b");
  EXPECT_EQ(warns.outcome.code, 0) << warns.outcome.err;
  EXPECT_THAT(warns.outcome.out, HasSubstr("training goes on"));
  EXPECT_EQ(warns.losses.size(), 6U);
}

// Reads from the terminal until the text comes, or the other side is gone.
bool read_until(int terminal, const std::string& text, std::string& all) {
  char buffer[4096];
  while (all.find(text) == std::string::npos) {
    const auto count = read(terminal, buffer, sizeof buffer);
    if (count <= 0) return false;
    all.append(buffer, static_cast<std::size_t>(count));
  }
  return true;
}

TEST(Terminal, ShowsABarAndControlCLeavesNothingBehind) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "tmp");
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) {
    setenv("TERM", "xterm", 1);
    setenv("TMPDIR", (dir / "tmp").c_str(), 1);
    const std::string log = "--log-json=" + (dir / "log");
    execl(PENSTOCK_TOOL, "penstock", "train", "--steps=100000", "--layers=1", "--width=8", "--heads=1",
          "--seq=6", log.c_str(), nullptr);
    _exit(127);
  }
  std::string shown;
  EXPECT_TRUE(read_until(terminal, "step 3/100000", shown)) << shown;
  EXPECT_THAT(shown, AllOf(HasSubstr("\r\x1b[K[>"), HasSubstr(" left")));
  ASSERT_EQ(write(terminal, "\x03", 1), 1);
  read_until(terminal, "\x04 never", shown);  // to its end
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
