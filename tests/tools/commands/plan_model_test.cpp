// `penstock plan --model`: the command that it prints trains the model with the plan.
#include "support/lines.h"
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

using testing::HasSubstr;

TEST(ToolPlanModel, PrintsCommandThatTrains) {
  const std::string archives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";
  const Outcome plan = penstock({"plan", "--model", archives + "mlp.pt2", "--ranks", "2", "--microbatches",
                                 "2", "--schedules", "ZB1P"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const std::string command = lines_of(plan.out).back();
  EXPECT_EQ(command, "  penstock train " + archives +
                         "mlp.pt2 --data FILE.safetensors --ranks 2 --schedule ZB1P --stages-per-rank 1 "
                         "--microbatches 2 --balance time");
  std::vector<std::string> words;
  std::istringstream in(command);
  for (std::string word; in >> word;)
    words.push_back(word == "FILE.safetensors" ? archives + "mlp.safetensors" : word);
  words[0] = PENSTOCK_TOOL;
  words.insert(words.end(), {"--loss=mse", "--steps=1", "--batch=4"});
  const Outcome train = run_program(words);
  EXPECT_EQ(train.code, 0) << train.err;
  EXPECT_THAT(train.out, HasSubstr("; ZB1P over 2 stages"));
}

TEST(ToolPlanModel, QuotesPathsForShell) {
  const TempDir dir;
  const std::string path = dir / "it's mine.pt2";
  std::filesystem::copy_file(PENSTOCK_SOURCE_DIR "/tests/train/archives/mlp.pt2", path);
  const Outcome plan =
      penstock({"plan", "--model", path, "--ranks", "2", "--microbatches", "2", "--schedules", "1F1B"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  // The shell reads the quoted word as the path.
  const std::string command = lines_of(plan.out).back();
  const std::string start = "penstock train ", end = " --data";
  const std::size_t from = command.find(start) + start.size();
  const Outcome echoed =
      run_program({"sh", "-c", "printf %s " + command.substr(from, command.find(end) - from)});
  EXPECT_EQ(echoed.out, path);
}

}  // namespace
}  // namespace penstock::test
