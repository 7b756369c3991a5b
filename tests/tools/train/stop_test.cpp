// SIGINT and SIGTERM: the first one ends a run after its step, with a checkpoint; a second one ends it at
// once.
#include "tools/train/small_gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <regex>
#include <thread>

namespace penstock::test {
namespace {

using testing::HasSubstr;

void wait_for(Program& program, const std::string& text) {
  while (!program.ended() && program.out().find(text) == std::string::npos) std::this_thread::yield();
}

class ToolTrainStop : public testing::TestWithParam<int> {
 protected:
  std::vector<std::string> words(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> all{"--ranks=3", "--layers=3", "--checkpoint=" + (dir_ / name),
                                 "--log-json=" + (dir_ / (name + ".log"))};
    all.insert(all.end(), more.begin(), more.end());
    std::vector<std::string> result = small_gpt(all);
    std::erase(result, "--layers=2");
    return result;
  }

  TempDir dir_;
};

TEST_P(ToolTrainStop, EndsInAStepThatWouldNotBeLogged) {
  Program program(words("rare", {"--steps=1000000", "--log-every=1000000"}));
  wait_for(program, "step 1/");
  kill(program.pid(), GetParam());
  const Outcome stopped = program.finish();
  EXPECT_EQ(stopped.code, 128 + GetParam()) << stopped.err;
  const auto log = log_of(dir_ / "rare.log");
  ASSERT_EQ(log.size(), 2U);
  const auto last = log.back().at("step").get<int>();
  EXPECT_LT(last, 1000000);
  EXPECT_THAT(stopped.out, HasSubstr("stopped by SIGINT after step " + std::to_string(last) + " of 1000000"));
  EXPECT_THAT(stopped.out, testing::ContainsRegex("checkpoint: .*step-0*" + std::to_string(last) + "\n"));
}

TEST_P(ToolTrainStop, FirstSignalSavesAndResumeContinuesExactly) {
  Program program(words("stopped", {"--steps=1000000"}));
  wait_for(program, "step 3/");
  kill(program.pid(), GetParam());
  const Outcome stopped = program.finish();
  EXPECT_EQ(stopped.code, 128 + GetParam()) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("stopping: the ranks finish their step"));
  const auto log = log_of(dir_ / "stopped.log");
  ASSERT_FALSE(log.empty());
  const auto last = static_cast<int>(log.size());
  EXPECT_EQ(log.back().at("step"), last);
  // The ranks get SIGINT for either signal.
  EXPECT_THAT(stopped.out, HasSubstr("stopped by SIGINT after step " + std::to_string(last) + " of 1000000"));
  std::smatch match;
  ASSERT_TRUE(std::regex_search(stopped.out, match, std::regex("\ncheckpoint: (.*step-0*(\\d+))\n")));
  EXPECT_EQ(std::stoi(match[2]), last);
  EXPECT_EQ(run_program({PENSTOCK_TOOL, "checkpoint", "verify", match[1]}).code, 0);

  const std::string steps = "--steps=" + std::to_string(last + 2);
  const Outcome resumed = run_program(words("stopped", {steps, "--resume"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  const Outcome straight = run_program(words("straight", {steps}));
  ASSERT_EQ(straight.code, 0) << straight.err;
  const auto pieces = log_of(dir_ / "stopped.log"), expected = log_of(dir_ / "straight.log");
  ASSERT_EQ(pieces.size(), expected.size());
  for (std::size_t i = 0; i < pieces.size(); ++i)
    EXPECT_EQ(pieces[i].at("loss"), expected[i].at("loss")) << "step " << i + 1;
}

INSTANTIATE_TEST_SUITE_P(Signals, ToolTrainStop, testing::Values(SIGINT, SIGTERM));

TEST_F(ToolTrainStop, SecondSignalStopsAtOnce) {
  // Rank 1 never finishes step 3, so the first signal cannot end the run.
  Program program(words("saved", {"--steps=1000000"}), {"PENSTOCK_FAULT=stall rank=1 step=3 at=step"});
  wait_for(program, "step 2/");
  kill(program.pid(), SIGINT);
  while (!program.ended() && program.err().find("a second signal") == std::string::npos)
    std::this_thread::yield();
  EXPECT_FALSE(program.ended());
  kill(program.pid(), SIGINT);
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.code, 128 + SIGINT);
  EXPECT_EQ(log_of(dir_ / "saved.log").size(), 2U);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "saved/step-00000002"));
}

TEST_F(ToolTrainStop, SaysThatThereIsNoCheckpoint) {
  Program program(small_gpt({"--steps=1000000"}));
  wait_for(program, "step 2/");
  kill(program.pid(), SIGINT);
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.code, 128 + SIGINT);
  EXPECT_THAT(outcome.out, HasSubstr("no checkpoint was written"));
}

// Under another launcher, the signal reaches the ranks themselves.
TEST_F(ToolTrainStop, StopsRanksOfOtherLauncher) {
  std::vector<std::string> all{PENSTOCK_TOOL, "run", "--ranks", "2", "--"};
  for (const std::string& word : small_gpt({"--steps=1000000", "--checkpoint=" + (dir_ / "saved")}))
    all.push_back(word);
  Program program(all);
  wait_for(program, "step 2/");
  kill(program.pid(), SIGTERM);
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.code, 128 + SIGTERM);
  EXPECT_THAT(outcome.out, HasSubstr("stopped by SIGTERM after step "));
  EXPECT_THAT(outcome.out, HasSubstr("checkpoint: " + (dir_ / "saved/step-")));
}

}  // namespace
}  // namespace penstock::test
