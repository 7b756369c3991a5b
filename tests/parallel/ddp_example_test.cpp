// The data-parallel example through the launcher, and an example that must not be launched.
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

namespace penstock::test {
namespace {

const std::string kDdp = PENSTOCK_EXAMPLES "/example_ddp";

//! The losses that the first rank prints.
std::vector<double> losses_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<double> losses;
  const std::regex line("step [0-9]+ loss (-?[0-9.]+)");
  for (auto it = std::sregex_iterator(outcome.out.begin(), outcome.out.end(), line);
       it != std::sregex_iterator(); ++it)
    losses.push_back(std::stod((*it)[1]));
  return losses;
}

// The mean over equal shards is the mean over the batch, except for the order of sums.
TEST(ParallelDdpExample, LossesDoNotDependOnNumberOfRanks) {
  const std::vector<double> alone = losses_of(run_program({kDdp}));
  ASSERT_EQ(alone.size(), 3U);
  EXPECT_LT(alone[2], alone[0] - 0.1);
  for (const char* ranks : {"2", "4"}) {
    const std::vector<double> losses = losses_of(penstock({"run", "--ranks", ranks, "--", kDdp}));
    ASSERT_EQ(losses.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses[i], alone[i], 1e-3) << ranks << " ranks";
  }
}

TEST(ParallelDdpExample, ImageClassifierDoesNotDependOnNumberOfRanks) {
  const std::string images = PENSTOCK_EXAMPLES "/example_images";
  const auto accuracy_of = [](const Outcome& outcome) {
    std::smatch found;
    EXPECT_TRUE(std::regex_search(outcome.out, found, std::regex("accuracy ([0-9]+)%"))) << outcome.out;
    return found.empty() ? 0 : std::stoi(found[1]);
  };
  const Outcome single = run_program({images});
  const std::vector<double> alone = losses_of(single);
  ASSERT_EQ(alone.size(), 3U);
  EXPECT_LT(alone[2], 0.5 * alone[0]);
  EXPECT_GT(accuracy_of(single), 90);
  for (const char* ranks : {"2", "4"}) {
    const Outcome outcome = penstock({"run", "--ranks", ranks, "--", images});
    const std::vector<double> losses = losses_of(outcome);
    ASSERT_EQ(losses.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses[i], alone[i], 2e-3) << ranks << " ranks";
    EXPECT_GT(accuracy_of(outcome), 90);
  }
  EXPECT_EQ(penstock({"run", "--ranks", "3", "--", images}).code, 1);
}

// Actors and learners: the data depends on the policy, so that a difference would grow.
TEST(ParallelDdpExample, ActorLearnerLearnsAndDoesNotDependOnNumberOfRanks) {
  const std::string program = PENSTOCK_EXAMPLES "/example_actor_learner";
  const auto returns_of = [](const Outcome& outcome) {
    std::vector<double> returns;
    const std::regex line("mean return ([0-9.]+)");
    for (auto it = std::sregex_iterator(outcome.out.begin(), outcome.out.end(), line);
         it != std::sregex_iterator(); ++it)
      returns.push_back(std::stod((*it)[1]));
    return returns;
  };
  const Outcome single = run_program({program});
  const std::vector<double> alone = losses_of(single), returns = returns_of(single);
  ASSERT_EQ(alone.size(), 3U);
  ASSERT_EQ(returns.size(), 4U);
  EXPECT_LT(returns.front(), 40) << "random policy";
  EXPECT_GT(returns.back(), 5 * returns.front());
  EXPECT_EQ(run_program({program}).out, single.out);
  for (const char* ranks : {"2", "4"}) {
    const Outcome outcome = penstock({"run", "--ranks", ranks, "--", program});
    const std::vector<double> losses = losses_of(outcome);
    ASSERT_EQ(losses.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses[i], alone[i], 2e-6) << ranks << " ranks";
    EXPECT_EQ(returns_of(outcome), returns);
  }
  EXPECT_EQ(penstock({"run", "--ranks", "3", "--", program}).code, 1);
}

// The last rank, which has the loss, prints the same as with thread ranks.
TEST(ParallelDdpExample, PipelineRunsOnProcesses) {
  const std::string program = PENSTOCK_EXAMPLES "/example_mlp_pipeline";
  const Outcome processes = penstock({"run", "--ranks", "4", "--", program});
  const std::vector<double> losses = losses_of(processes);
  EXPECT_EQ(losses.size(), 3U) << processes.err;
  EXPECT_EQ(losses, losses_of(run_program({program})));
}

TEST(ParallelDdpExample, ThreadRanksUnderLauncherAreRejected) {
  const Outcome outcome = penstock({"run", "--ranks", "2", "--", PENSTOCK_EXAMPLES "/example_mlp_pipeline"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err,
              testing::HasSubstr("would start 4 ranks as threads in each of the launcher's 2 processes"));
  EXPECT_THAT(outcome.err, testing::HasSubstr("take the launcher's world from init()"));
}

}  // namespace
}  // namespace penstock::test
