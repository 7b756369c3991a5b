// 200 random faults: each run meets one in every attempt but the last, and must end with the losses of a
// quiet run.
#include "faults.h"

#include <gtest/gtest.h>

#include <random>

namespace penstock::test {
namespace {

TEST(Soak, TwoHundredFaultsChangeNothing) {
  const unsigned seed = 20261116;
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto pick = [&](const std::vector<std::string>& list) { return list[random() % list.size()]; };
  const TempDir dir;
  const std::vector<std::string> more{"--steps=12", "--timeout=5"};
  const FaultRun quiet = run_with_faults("", more, dir / "quiet");
  ASSERT_EQ(quiet.outcome.code, 0) << quiet.outcome.err;
  constexpr int runs = 40, each = 5;
  for (int run = 0; run < runs; ++run) {
    std::string faults;
    for (int attempt = 0; attempt < each; ++attempt) {
      const int rank = static_cast<int>(random() % 2);
      const std::string stage = std::to_string(rank);
      const std::string place =
          pick({"action=" + stage + "F0", "action=" + stage + "F1", "action=" + stage + "B0",
                "action=" + stage + "B1", rank == 0 ? "action=0SEND_F1" : "action=1RECV_F1",
                rank == 0 ? "action=0RECV_B0" : "action=1SEND_B1", "at=setup", "at=start", "at=step",
                "at=update", "at=checkpoint", "at=end"});
      const bool whole = place == "at=setup" || place == "at=start" || place == "at=end";
      const std::string step = whole ? "" : " step=" + std::to_string(2 * (1 + random() % 6));
      faults += pick({"kill", "kill", "exit", "throw", "throw", "stop", "stall"}) + " rank=" + stage + step +
                " " + place + " attempt=" + std::to_string(attempt) + ";";
    }
    SCOPED_TRACE(faults);
    std::vector<std::string> words = more;
    words.push_back("--max-restarts=" + std::to_string(each));
    const FaultRun result = run_with_faults(faults, words, dir / std::to_string(run));
    EXPECT_EQ(result.outcome.code, 0) << result.outcome.err;
    EXPECT_EQ(result.losses, quiet.losses);
    EXPECT_EQ(result.left, "");
    std::printf("run %d of %d: %d restarts in %.0f s\n", run + 1, runs, each, result.seconds);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace penstock::test
