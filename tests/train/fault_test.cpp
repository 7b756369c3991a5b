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

TEST(Faults, ARestartedRunHasTheLossesOfAQuietOne) {
  const TempDir dir;
  const FaultRun quiet = run_with_faults("", {}, dir / "quiet");
  ASSERT_EQ(quiet.outcome.code, 0) << quiet.outcome.err;
  ASSERT_EQ(quiet.losses.size(), 6U);
  // Two in a row each, on either rank, before and after the first checkpoint.
  const std::vector<std::string> plans = {
      "kill rank=1 step=3 action=1F1; throw rank=0 step=5 action=0B0 attempt=1",
      "exit rank=0 at=setup; kill rank=0 step=4 at=update attempt=1",
      "kill rank=1 step=4 at=checkpoint; exit rank=1 step=5 action=1SEND_B0 attempt=1",
      "stop rank=1 step=5 action=1B0; throw rank=1 at=start attempt=1",
      "throw rank=1 at=end; kill rank=0 at=end attempt=1",
      "stall rank=0 step=3 action=0RECV_B1; throw rank=0 step=6 at=checkpoint attempt=1",
  };
  for (std::size_t i = 0; i < plans.size(); ++i) {
    SCOPED_TRACE(plans[i]);
    const FaultRun run =
        run_with_faults(plans[i], {"--max-restarts=2", "--timeout=4"}, dir / std::to_string(i));
    EXPECT_EQ(run.outcome.code, 0) << run.outcome.err;
    EXPECT_EQ(run.losses, quiet.losses);
    EXPECT_EQ(run.left, "");
    EXPECT_THAT(run.outcome.err, HasSubstr("restarting (2 of 2)"));
  }
}

TEST(Faults, AreNamedWithRankStepStageActionAndCause) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"throw rank=1 step=3 action=1F1", {"step 3", "stage 1", "1F1", "rank 1", "a fault was asked for"}},
      {"kill rank=1 step=4 action=1B0", {"rank 1 was in step 4, stage 1, action 1B0", "SIGKILL"}},
      {"exit rank=0 step=2 action=0F1", {"rank 0 was in step 2, stage 0, action 0F1", "exited with code 3"}},
      {"stop rank=0 step=3 action=0F1", {"rank 0 was in step 3, stage 0, action 0F1", "step 3", "rank 0"}},
      {"kill rank=0 at=start", {"rank 0", "SIGKILL"}},
  };
  for (const auto& [fault, texts] : cases) {
    SCOPED_TRACE(fault);
    const TempDir dir;
    const FaultRun run = run_with_faults(fault, {}, dir / "run");
    EXPECT_EQ(run.outcome.code, 1);
    for (const std::string& text : texts) EXPECT_THAT(run.outcome.err, HasSubstr(text));
    EXPECT_EQ(run.left, "");
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
