// Two runs with one checkpoint directory, and the checks and messages about directories before and during
// training.
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <thread>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> train(std::vector<std::string> words) {
  words.insert(words.begin(), {PENSTOCK_TOOL, "train", "--layers=2", "--width=8", "--heads=1", "--seq=6",
                               "--batch=4", "--microbatches=2", "--sample=0"});
  return words;
}

//! Waits until the program has written this text; false if it ended before.
bool wait_for(Program& program, const std::string& text) {
  while (program.out().find(text) == std::string::npos) {
    if (program.ended()) return program.out().find(text) != std::string::npos;
    std::this_thread::yield();
  }
  return true;
}

TEST(ToolTrainCheckpointDirectory, IsExclusiveAndReleasedAfterKill) {
  const TempDir dir;
  const std::string directory = dir / "saved";
  Program first(train({"--steps=1000000", "--checkpoint-every=20", "--checkpoint=" + directory}));
  ASSERT_TRUE(wait_for(first, "checkpoint " + directory)) << first.err();
  const Outcome second = run_program(train({"--steps=1000000", "--checkpoint=" + directory, "--resume"}));
  EXPECT_EQ(second.code, 2) << second.err;
  EXPECT_THAT(second.err, AllOf(HasSubstr("in use by another run: process "), HasSubstr("started at")));
  EXPECT_THAT(second.out, Not(HasSubstr("step 1/")));
  // The launcher was killed; its ranks end with it.
  ASSERT_EQ(::kill(first.pid(), SIGKILL), 0);
  const Outcome resumed = run_program(train({"--steps=1", "--checkpoint=" + directory, "--resume"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
}

TEST(ToolTrainCheckpointDirectory, IsLockedAgainAfterRestart) {
  const TempDir dir;
  Program program(
      train({"--steps=8", "--checkpoint-every=2", "--max-restarts=1", "--checkpoint=" + (dir / "saved")}),
      {"PENSTOCK_FAULT=kill rank=0 step=5"});
  const Outcome done = program.finish();
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("checkpoint " + (dir / "saved/step-00000008")));
}

TEST(ToolTrainCheckpointDirectory, UnwritableDirectoryIsReportedBeforeTraining) {
  const TempDir dir;
  std::ofstream(dir / "file") << "x";
  for (const std::string& directory : {dir / "file", dir / "file/inside", std::string("/proc/no/such")}) {
    const Outcome refused = run_program(train({"--steps=2", "--checkpoint=" + directory}));
    EXPECT_EQ(refused.code, 2) << refused.err;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("checkpoint"), HasSubstr(directory)));
    EXPECT_THAT(refused.out, Not(HasSubstr("step ")));
  }
}

TEST(ToolTrain, CreatesOnlyNamedDirectoriesAndReportsThem) {
  const TempDir dir;
  for (const char* option : {"--log-json=", "--timeline=", "--trace=", "--profile="}) {
    const Outcome refused = run_program(train({"--steps=1", option + (dir / "no/such/file")}));
    EXPECT_EQ(refused.code, 2) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("there is no directory"));
    EXPECT_FALSE(std::filesystem::exists(dir / "no"));
  }
  const Outcome made = run_program(
      train({"--steps=2", "--output=" + (dir / "new/run"), "--optimizer=sgd", "--momentum=1e-320"}));
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr("created the directory " + (dir / "new/run") + "\n"),
                              HasSubstr("created the directory " + (dir / "new/run/checkpoint") + "\n"),
                              HasSubstr("momentum = 1e-320\n")));
  // Reported when it is complete: after the last step.
  EXPECT_LT(made.out.find("step 2/2"),
            made.out.find("checkpoint " + (dir / "new/run/checkpoint/step-00000002")));
  EXPECT_TRUE(std::filesystem::exists(dir / "new/run/log.jsonl"));
}

// Checkpoints are written in the background. The output is read line by line while the run continues.
TEST(ToolTrain, ReportsEachCheckpointWhenItIsComplete) {
  const TempDir dir;
  const std::string saved = dir / "saved";
  std::string command;
  for (const std::string& word :
       train({"--steps=6", "--checkpoint-every=2", "--checkpoint-keep=9", "--checkpoint=" + saved}))
    command += word + " ";
  std::FILE* const out = popen(command.c_str(), "r");
  ASSERT_NE(out, nullptr);
  int reported = 0;
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), static_cast<int>(buffer.size()), out) != nullptr) {
    const std::string line = buffer.data();
    const auto at = line.find("checkpoint " + saved + "/step-");
    if (at == std::string::npos) continue;
    const std::string path = line.substr(at + 11, line.find_last_not_of('\n') - at - 10);
    EXPECT_TRUE(std::filesystem::exists(path + "/manifest.json")) << line;  // the last file of a checkpoint
    const Outcome verified = penstock({"checkpoint", "verify", path});
    EXPECT_EQ(verified.code, 0) << line << verified.out << verified.err;
    ++reported;
  }
  EXPECT_EQ(pclose(out), 0);
  EXPECT_EQ(reported, 3);
}

}  // namespace
}  // namespace penstock::test
