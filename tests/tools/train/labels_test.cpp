// `penstock train` on tokens for models that take positions, masks, or the labels of a loss that they
// compute, compared with Python (tests/train/make_labels.py).
#include "support/lines.h"
#include "support/program.h"
#include "tools/train/small_gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kLabelArchives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";

// The tokens of make_packed.py, of which 4 ends a document, and those of own_next.
void write_streams(const TempDir& dir) {
  std::ofstream tokens(dir / "tokens.bin", std::ios::binary), other(dir / "own_next.bin", std::ios::binary);
  for (int i = 0; i < 300; ++i) tokens.put(static_cast<char>((i * i + i / 5) % 11)).put(0);
  for (int i = 0; i < 200; ++i) other.put(static_cast<char>((3 * i * i + i / 7) % 17)).put(0);
}

std::vector<double> python_losses(const std::string& run) {
  std::vector<double> losses;
  for (const std::string& line : lines_of(slurp(kLabelArchives + "labels.txt"))) {
    std::istringstream words(line);
    std::string name;
    double step = 0, loss = 0;
    if (words >> name >> step >> loss && name == run) losses.push_back(loss);
  }
  return losses;
}

std::vector<double> losses_of(const TempDir& dir, const std::string& model,
                              const std::vector<std::string>& more) {
  std::vector<std::string> words{
      "train",      kLabelArchives + model + ".pt2", "--batch=8", "--seed=5", "--lr=0.01",
      "--steps=10", "--log-json=" + (dir / "log"),   "--quiet"};
  words.push_back("--data=" + (dir / (model == "own_next" ? "own_next.bin" : "tokens.bin")));
  words.insert(words.end(), more.begin(), more.end());
  std::filesystem::remove(dir / "log");
  const Outcome outcome = penstock(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<double> losses;
  for (const nlohmann::json& line : log_of(dir / "log")) losses.push_back(line.at("loss"));
  return losses;
}

void expect_python(const TempDir& dir, const std::string& run, const std::string& model,
                   const std::vector<std::string>& more) {
  SCOPED_TRACE(run + " " + more[0]);
  const std::vector<double> expected = python_losses(run), losses = losses_of(dir, model, more);
  ASSERT_EQ(expected.size(), 10U);
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 2e-5) << i + 1;
}

// Without documents, each token attends to itself and to those before it in its sequence.
TEST(ToolTrainLabels, PositionsAndMasksAreSupplied) {
  const TempDir dir;
  write_streams(dir);
  for (const std::string model : {"packed", "packed_additive", "padding_mask"}) {
    expect_python(dir, model, model, {"--ranks=1", "--microbatches=2"});
    if (model != "padding_mask") expect_python(dir, model, model, {"--pp=2", "--dp=2", "--microbatches=2"});
  }
}

TEST(ToolTrainLabels, ModelsWithTheirOwnLossHaveLabels) {
  const TempDir dir;
  write_streams(dir);
  for (const std::vector<std::string>& topology : {std::vector<std::string>{"--ranks=1", "--microbatches=2"},
                                                   {"--pp=2", "--dp=2", "--microbatches=2"}}) {
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.begin(), topology.begin(), topology.end());
      return more;
    };
    expect_python(dir, "own_next", "own_next", with({}));
    expect_python(dir, "targets", "targets", with({"--labels=targets", "--loss-output=output.1"}));
    expect_python(dir, "labeled", "labeled", with({"--loss-output=loss"}));
    expect_python(dir, "labeled_documents", "labeled", with({"--document-separator=4"}));
    expect_python(dir, "labeled_inside", "labeled",
                  with({"--document-separator=4", "--no-boundary-targets"}));
  }
}

// The resolved configuration names the labels and the loss, so that a resumed run needs neither.
TEST(ToolTrainLabels, ConfigurationNamesThem) {
  const TempDir dir;
  write_streams(dir);
  const std::vector<std::string> words{
      "train",     kLabelArchives + "own_next.pt2", "--data=" + (dir / "own_next.bin"), "--batch=8",
      "--ranks=1", "--checkpoint=" + (dir / "c")};
  std::vector<std::string> first = words, second = words;
  first.emplace_back("--steps=1");
  const Outcome outcome = penstock(first);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("labels = \"labels\"\n"), HasSubstr("loss-mean = \"next_labels\"\n"),
                    HasSubstr("loss-output = \"output.loss\"\n")));
  second.insert(second.end(), {"--steps=2", "--resume"});
  const Outcome resumed = penstock(second);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, testing::Not(HasSubstr("in the run that wrote the checkpoint")));
}

// The labels do not change the logits, so the tokens are those of any labels.
TEST(ToolTrainLabels, GenerateSuppliesThem) {
  const Outcome outcome = penstock({"generate", kLabelArchives + "labeled.pt2", "--prompt-tokens=3,1,4,1",
                                    "--max-tokens=6", "--greedy", "--ranks=2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Outcome targets = penstock({"generate", kLabelArchives + "targets.pt2", "--prompt-tokens=3,1"});
  EXPECT_EQ(targets.code, 2);
  EXPECT_THAT(targets.err, HasSubstr("has 2 inputs besides position_ids, attention_mask and labels"));
}

TEST(ToolTrainLabels, RefusesWhatDoesNotFit) {
  const TempDir dir;
  write_streams(dir);
  const auto expect = [&](const std::string& model, const std::vector<std::string>& more,
                          const std::string& problem, const std::string& hint) {
    std::vector<std::string> words{"train", kLabelArchives + model + ".pt2",
                                   "--data=" + (dir / "tokens.bin")};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = penstock(words);
    EXPECT_EQ(outcome.code, 2) << problem;
    EXPECT_THAT(outcome.err, HasSubstr(problem));
    EXPECT_THAT(outcome.err, HasSubstr(hint));
  };
  expect("targets", {},
         "only input besides position_ids, attention_mask and labels, but this one takes 'idx', 'targets'",
         "--labels");
  expect("targets", {"--labels=idx", "--loss-output=output.0"}, "the output 'output.0' is not a scalar",
         "name the output that is the loss");
  expect("targets", {"--labels=other", "--loss-output=output.1"},
         "the model has no input 'other' of integers", "name the input of the labels");
  expect("own_next", {"--loss=mse"}, "--loss does not apply: the model takes labels", "leave it out");
  expect("own_next", {"--loss-mean=rows"}, "but the loss of the model is a mean over rows",
         "--loss-mean auto");
  expect("causal", {"--labels=input_ids"}, "is not a scalar", "name the output that is the loss");
  const Outcome tensors = penstock({"train", kLabelArchives + "mlp.pt2", "--labels=input", "--loss=mse",
                                    "--data=" + kLabelArchives + "mlp.safetensors"});
  EXPECT_EQ(tensors.code, 2);
  EXPECT_THAT(tensors.err, HasSubstr("--labels does not apply: the model does not compute its own loss"));
}

}  // namespace
}  // namespace penstock::test
