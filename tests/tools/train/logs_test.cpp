// The logs of `penstock train`: CSV and TensorBoard next to JSON Lines, and what a resumed run says and
// keeps.
#include "support/tensorboard.h"
#include "tools/train/small_gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

//! The rows of a CSV log: values by name.
std::vector<std::map<std::string, std::string>> csv_of(const std::string& path) {
  const auto fields = [](const std::string& line) {
    std::vector<std::string> texts;
    std::istringstream in(line);
    for (std::string text; std::getline(in, text, ',');) texts.push_back(text);
    return texts;
  };
  std::vector<std::map<std::string, std::string>> rows;
  std::vector<std::string> names;
  for (const std::string& line : lines_of(slurp(path))) {
    const std::vector<std::string> values = fields(line);
    if (names.empty()) {
      names = values;
      continue;
    }
    EXPECT_EQ(values.size(), names.size()) << line;
    auto& row = rows.emplace_back();
    for (std::size_t i = 0; i < values.size() && i < names.size(); ++i) row[names[i]] = values[i];
  }
  return rows;
}

class ToolTrainLogs : public testing::Test {
 protected:
  Outcome train(int steps, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"--steps=" + std::to_string(steps),  "--eval-every=2",
                                   "--log-json=" + (dir_ / "log"),      "--log-csv=" + (dir_ / "log.csv"),
                                   "--tensorboard=" + (dir_ / "board"), "--checkpoint=" + (dir_ / "saved")};
    words.insert(words.end(), more.begin(), more.end());
    Outcome outcome = run_program(small_gpt(words));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  }
  //! The files have the numbers of the JSON log.
  void expect_same(std::size_t steps) const {
    const auto log = log_of(dir_ / "log");
    const auto rows = csv_of(dir_ / "log.csv");
    ASSERT_EQ(log.size(), steps);
    ASSERT_EQ(rows.size(), steps);
    for (std::size_t i = 0; i < steps; ++i) {
      EXPECT_EQ(rows[i].at("step"), std::to_string(i + 1));
      for (const char* name : {"loss", "grad_norm", "lr", "seconds", "tokens_per_second", "bubble"})
        EXPECT_EQ(std::stod(rows[i].at(name)), log[i].at(name).get<double>()) << name;
      std::vector<std::uint64_t> memory;
      std::istringstream in(rows[i].at("peak_memory"));
      for (std::uint64_t bytes = 0; in >> bytes;) memory.push_back(bytes);
      EXPECT_EQ(nlohmann::json(memory), log[i].at("peak_memory"));
      EXPECT_EQ(rows[i].at("skipped"), "0");
    }
  }

  TempDir dir_;
};

TEST_F(ToolTrainLogs, CsvAndTensorBoardMatchJsonAcrossResume) {
  const Outcome outcome = train(4);
  EXPECT_THAT(outcome.out, HasSubstr("TensorBoard: tensorboard --logdir " + (dir_ / "board")));
  expect_same(4);
  // The same steps again, from the checkpoint of step 4; nothing is written twice.
  train(7, {"--resume"});
  expect_same(7);
  const auto read = read_tensorboard(dir_ / "board");
  if (!read) GTEST_SKIP() << "PENSTOCK_PYTHON names no Python with tensorboard";
  const auto log = log_of(dir_ / "log");
  for (const char* name : {"loss", "grad_norm", "lr", "tokens_per_second"}) {
    ASSERT_EQ(read->at(name).size(), 7U) << name;
    for (std::size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(read->at(name)[i][0], i + 1);
      EXPECT_EQ(read->at(name)[i][1].get<float>(), log[i].at(name).get<float>()) << name;
    }
  }
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(read->at("peak_memory/rank_" + std::to_string(rank)).size(), 7U);
  std::vector<int> validated;
  for (const auto& point : read->at("validation_loss")) validated.push_back(point[0]);
  EXPECT_EQ(validated, (std::vector{2, 4, 6}));
}

TEST_F(ToolTrainLogs, ResumeNamesChangedSettings) {
  train(2, {"--lr=0.004", "--batch=8"});
  const Outcome same = train(3, {"--resume", "--lr=0.004", "--batch=8", "--microbatches=2"});
  EXPECT_THAT(same.out, Not(HasSubstr("the command line wins")));
  const Outcome other =
      train(4, {"--resume", "--lr=0.001", "--batch=4", "--weight-decay=0.1", "--microbatches=2"});
  EXPECT_THAT(other.out,
              AllOf(HasSubstr("--lr was 0.004 in the run that wrote the checkpoint; this run uses 0.001, "
                              "because the command line wins\n"),
                    HasSubstr("--batch was 8 in "), HasSubstr("this run uses 4,"),
                    HasSubstr("--weight-decay was 0.0 in ")));
  EXPECT_THAT(other.out, Not(HasSubstr("--microbatches was")));
  std::size_t lines = 0;
  for (const std::string& line : lines_of(other.out))
    lines += line.find("the command line wins") != std::string::npos;
  EXPECT_EQ(lines, 3U);  // not --steps: a resumed run may be longer
  // The rate of the log is that of the command line.
  EXPECT_LT(log_of(dir_ / "log").back().at("lr").get<double>(), 0.0011);
}

TEST_F(ToolTrainLogs, ResumeNamesChangedDataAndLoss) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "one and two are three. ";
  std::ofstream(dir_ / "first.txt") << text;
  std::ofstream(dir_ / "second.txt") << text << text;
  train(2, {"--data=" + (dir_ / "first.txt")});
  const Outcome other = train(3, {"--resume", "--data=" + (dir_ / "second.txt"), "--label-smoothing=0.1"});
  EXPECT_THAT(other.out, AllOf(HasSubstr("--data was \"" + (dir_ / "first.txt")),
                               HasSubstr("this run uses \"" + (dir_ / "second.txt")),
                               HasSubstr("--label-smoothing was 0.0 in "), HasSubstr("this run uses 0.1,")));
}

// The checkpoint does not have the states of the other optimizer, so the run does not start.
TEST_F(ToolTrainLogs, ResumeWithOtherOptimizerSaysWhatDiffers) {
  train(2, {"--optimizer=sgd"});
  const Outcome outcome = run_program(small_gpt(
      {"--steps=3", "--checkpoint=" + (dir_ / "saved"), "--resume", "--optimizer=adamw", "--lr=0.5"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("do not match this run"),
                    HasSubstr("--optimizer was \"sgd\" in the run that wrote the checkpoint; this "
                              "run uses \"adamw\", because the command line wins"),
                    HasSubstr("this run uses 0.5"), HasSubstr("resume partly")));
}

TEST(ToolTrainOutputs, TimelineNamesRun) {
  const TempDir dir;
  const Outcome outcome =
      run_program(small_gpt({"--steps=3", "--pp=2", "--dp=2", "--timeline=" + (dir / "t.html")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(slurp(dir / "t.html"),
              AllOf(HasSubstr("[\"model\",\"GPT of 2 layers"), HasSubstr("[\"step\",\"3\"]"),
                    HasSubstr("[\"date\",\"2"), HasSubstr("[\"topology\",\"2 pipeline ranks x 2 replicas\"]"),
                    HasSubstr("[\"peak resident memory of the run\",\"rank 0: "), HasSubstr(", rank 3: ")));
}

TEST(ToolTrainOutputs, RejectsInvalidLogPaths) {
  const TempDir dir;
  const Outcome folder = run_program(small_gpt({"--steps=1", "--log-csv=" + dir.path()}));
  EXPECT_EQ(folder.code, 2);
  EXPECT_THAT(folder.err, AllOf(HasSubstr("--log-csv"), HasSubstr("is a directory, not a file")));
  const Outcome board = run_program(small_gpt({"--steps=1", "--tensorboard=/proc/no/board"}));
  EXPECT_EQ(board.code, 2);
  EXPECT_THAT(board.err, HasSubstr("--tensorboard"));
}

}  // namespace
}  // namespace penstock::test
