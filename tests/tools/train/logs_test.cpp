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
    std::istringstream in(line + ",");  // so that an empty last field counts
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
      EXPECT_EQ(rows[i].at("loss_scale"), "");
      const bool validated = i % 2 == 1;  // --eval-every=2
      EXPECT_EQ(log[i].contains("validation_loss"), validated) << i;
      EXPECT_EQ(rows[i].at("validation_loss").empty(), !validated) << i;
      if (!validated) continue;
      EXPECT_EQ(std::stod(rows[i].at("validation_loss")), log[i].at("validation_loss").get<double>());
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
  for (const auto& point : read->at("validation_loss")) {
    validated.push_back(point[0]);
    EXPECT_EQ(point[1].get<float>(), log[point[0].get<std::size_t>() - 1].at("validation_loss").get<float>());
  }
  EXPECT_EQ(validated, (std::vector{2, 4, 6}));
}

// The rows of a CSV file that an earlier version wrote have fewer fields.
TEST_F(ToolTrainLogs, CsvOfEarlierVersionIsContinued) {
  train(3, {"--precision=fp16"});
  const std::vector<std::string> lines = lines_of(slurp(dir_ / "log.csv"));
  ASSERT_EQ(lines.size(), 4U);
  const std::string old = ",loss_scale,validation_loss";
  ASSERT_THAT(lines[0], testing::EndsWith(old));
  std::ofstream earlier(dir_ / "log.csv", std::ios::trunc);
  for (std::string line : lines) {
    for (int i = 0; i < 2; ++i) line.resize(line.rfind(','));
    earlier << line << '\n';
  }
  earlier.close();
  train(4, {"--precision=fp16", "--resume"});
  const auto rows = csv_of(dir_ / "log.csv");
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[2].at("loss_scale"), "");
  EXPECT_EQ(std::stod(rows[3].at("loss_scale")), log_of(dir_ / "log")[3].at("loss_scale").get<double>());
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

TEST_F(ToolTrainLogs, ResumeSaysWhetherChangesWereGiven) {
  train(2, {"--lr=0.004", "--lr-schedule=cosine"});
  // Longer, at the default rate, and with weights that are not read.
  std::filesystem::copy(dir_ / "saved", dir_ / "weights", std::filesystem::copy_options::recursive);
  const Outcome outcome =
      train(3, {"--resume", "--lr-schedule=cosine", "--weight-decay=0.1", "--init=" + (dir_ / "weights")});
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("--lr was 0.004 in the run that wrote the checkpoint; this run uses 0.003, the default; "
                    "give --lr to keep the old value\n"),
          HasSubstr("this run uses 0.1, because the command line wins\n"),
          HasSubstr("--steps was 2 in the run that wrote the checkpoint; this run uses 3, which changes the "
                    "learning rates of --lr-schedule cosine\n"),
          HasSubstr("--init has no effect: the run continues with the weights of the checkpoint\n")));
  std::size_t lines = 0;
  for (const std::string& line : lines_of(outcome.out))
    lines += line.find("in the run that wrote the checkpoint") != std::string::npos;
  EXPECT_EQ(lines, 3U);
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

// The configuration that a run prints.
std::string configuration_of(const Outcome& outcome) {
  const std::string heading = "# resolved configuration\n";
  const auto begin = outcome.out.find(heading), end = outcome.out.find("\n\n", begin);
  return outcome.out.substr(begin + heading.size(), end + 1 - begin - heading.size());
}

// Sharding needs several ranks; without them, what is sharded stays whole.
TEST(ToolTrainResume, OwnConfigurationRunsOnOneRank) {
  const TempDir dir;
  const auto losses_of = [&](const std::string& log) {
    std::vector<double> losses;
    for (const nlohmann::json& line : log_of(dir / log)) losses.push_back(line.at("loss"));
    return losses;
  };
  const Outcome first =
      run_program(small_gpt({"--steps=2", "--pp=2", "--dp=2", "--sharding=full", "--batch=8",
                             "--microbatches=2", "--checkpoint=" + (dir / "saved")}));
  ASSERT_EQ(first.code, 0) << first.err;
  std::ofstream(dir / "run.toml") << configuration_of(first);
  std::filesystem::copy(dir / "saved", dir / "copy", std::filesystem::copy_options::recursive);
  const auto resume = [&](const std::string& log, std::vector<std::string> more) {
    more.insert(more.begin(), {PENSTOCK_TOOL, "train", "--config=" + (dir / "run.toml"), "--resume",
                               "--steps=4", "--log-json=" + (dir / log)});
    const Outcome outcome = run_program(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string note = "--sharding full has no effect with 1 replica (--dp 1)\n";
  EXPECT_THAT(resume("four", {}), Not(HasSubstr(note)));
  EXPECT_THAT(resume("one", {"--ranks=1", "--checkpoint=" + (dir / "copy")}),
              AllOf(HasSubstr(note), HasSubstr("sharding = \"full\"\n"), Not(HasSubstr("was "))));
  const std::vector<double> expected = losses_of("four"), losses = losses_of("one");
  ASSERT_EQ(expected.size(), 2U);
  ASSERT_EQ(losses.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5);
}

// A new split of the model is reported by the run, and is no change of what is trained.
TEST(ToolTrainResume, PlanAndCutsOfOtherRanksAreNotNamed) {
  const TempDir dir;
  const std::string archives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";
  const auto train = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {PENSTOCK_TOOL, "train", archives + "mlp.pt2", "--loss=mse", "--batch=8",
                               "--data=" + archives + "mlp.safetensors", "--checkpoint=" + (dir / "saved"),
                               "--tp-plan=0=colwise,2=rowwise"});
    const Outcome outcome = run_program(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  train({"--steps=1", "--tp=2"});
  const std::string out = train({"--steps=2", "--pp=2", "--cuts=3", "--resume"});
  EXPECT_THAT(out, HasSubstr("--tp-plan has no effect with 1 tensor-parallel rank (--tp 1)\n"));
  EXPECT_THAT(out, Not(HasSubstr("in the run that wrote the checkpoint")));
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
