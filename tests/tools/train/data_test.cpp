// The data options of `penstock train`: order, epochs, files and validation data, through the real binaries.
#include "support/lines.h"
#include "support/program.h"

#include <penstock/checkpoint/safetensors.h>
#include <penstock/train/epochs.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

const std::string kArchives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";

// The text of a field in every line of a log.
std::vector<std::string> fields(const std::string& path, const std::string& name) {
  std::vector<std::string> values;
  for (const std::string& line : lines_of(slurp(path))) {
    const auto at = line.find("\"" + name + "\":") + name.size() + 3;
    values.push_back(line.substr(at, line.find_first_of(",}", at) - at));
  }
  return values;
}

// Trains the regression model and returns the losses as text, so that equal means bitwise equal.
std::vector<std::string> losses(const TempDir& dir, const std::vector<std::string>& more) {
  std::vector<std::string> words{"train",     kArchives + "mlp.pt2",         "--loss=mse", "--microbatches=2",
                                 "--lr=0.01", "--log-json=" + (dir / "log"), "--ranks=1"};
  for (const std::string& word : more)
    std::erase_if(
        words, [&](const std::string& old) { return old.starts_with(word.substr(0, word.find('=')) + "="); });
  words.insert(words.end(), more.begin(), more.end());
  std::filesystem::remove(dir / "log");
  const Outcome outcome = penstock(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return fields(dir / "log", "loss");
}

Tensors rows_of(const Tensors& tensors, const std::vector<std::int64_t>& rows) {
  Tensors selected;
  for (const auto& [name, tensor] : tensors)
    selected[name] = tensor.index_select(0, at::tensor(rows, at::kLong)).contiguous();
  return selected;
}

// A shuffled run equals a run in file order on rows that were shuffled beforehand.
TEST(ToolTrainData, ShuffledEpochsReadPermutedRows) {
  const TempDir dir;
  const Tensors all = checkpoint::load_safetensors(kArchives + "mlp.safetensors");
  ASSERT_EQ(all.at("target").size(0), 20);
  const train::Epochs epochs(20, {.shuffle = true, .seed = 3});
  std::vector<std::int64_t> order;
  for (std::int64_t step = 1; step <= 6; ++step) {
    const auto rows = epochs.examples_of(step, 10, 0, 10);
    order.insert(order.end(), rows.begin(), rows.end());
  }
  checkpoint::save_safetensors(dir / "shuffled.safetensors", rows_of(all, order));
  const auto expected =
      losses(dir, {"--data=" + (dir / "shuffled.safetensors"), "--no-shuffle", "--batch=10", "--epochs=1"});
  ASSERT_EQ(expected.size(), 6U);
  const std::vector<std::string> shuffled{"--data=" + kArchives + "mlp.safetensors", "--batch=10",
                                          "--seed=3"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), shuffled.begin(), shuffled.end());
    return losses(dir, more);
  };
  EXPECT_EQ(with({"--epochs=3"}), expected);
  EXPECT_NE(with({"--epochs=3", "--no-shuffle"}), expected);
}

// The losses of make_own_loss.py. The data has labels but no target.
TEST(ToolTrainData, LossOfTheModelHasLossesOfPython) {
  const TempDir dir;
  std::map<std::string, std::vector<double>> expected;
  for (const std::string& line : lines_of(slurp(kArchives + "own_loss.txt"))) {
    const auto first = line.find(' '), second = line.find(' ', first + 1);
    expected[line.substr(0, first)].push_back(std::stod(line.substr(second)));
  }
  for (const auto& [model, mean] :
       {std::pair<std::string, std::string>{"own_next", "next_labels"}, {"own_masked", "labels"}}) {
    const Outcome outcome =
        penstock({"train", kArchives + model + ".pt2", "--loss-output=loss", "--pp=2", "--dp=2",
                  "--microbatches=2", "--batch=8", "--steps=12", "--lr=0.01", "--seed=3",
                  "--data=" + kArchives + "own_loss.safetensors", "--log-json=" + (dir / model)});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("\nloss-mean = \"" + mean + "\"\n"));
    const std::vector<std::string> losses = fields(dir / model, "loss");
    ASSERT_EQ(losses.size(), 12U);
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(std::stod(losses[i]), expected.at(model)[i + 1], 2e-4 * expected.at(model)[i + 1]) << i + 1;
  }
}

// The losses of make_networks.py, whose images have their classes in dim 1.
TEST(ToolTrainData, ClassesMayBeInAnotherDim) {
  const TempDir dir;
  std::vector<double> expected;
  for (const std::string& line : lines_of(slurp(kArchives + "networks.txt")))
    if (line.starts_with("pixels_plain ")) expected.push_back(std::stod(line.substr(line.rfind(' '))));
  ASSERT_EQ(expected.size(), 12U);
  const auto train = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"train", kArchives + "pixels.pt2",
                               "--data=" + kArchives + "pixels.safetensors", "--no-shuffle", "--batch=12",
                               "--microbatches=3", "--lr=0.01", "--weight-decay=0.1", "--steps=12"});
    return penstock(more);
  };
  const Outcome outcome = train({"--class-dim=1", "--log-json=" + (dir / "log")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<std::string> losses = fields(dir / "log", "loss");
  ASSERT_EQ(losses.size(), 12U);
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(std::stod(losses[i]), expected[i], 2e-4 * expected[i]) << i + 1;
  const auto expect_refused = [&](const std::vector<std::string>& more, const std::string& text) {
    const Outcome refused = train(more);
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr(text));
  };
  expect_refused({}, "if dim 1 of the output has the classes, use --class-dim 1");
  expect_refused({"--class-dim=2"}, "'target' is int64[4, 2, 3] for a microbatch, but the output is");
  expect_refused({"--class-dim=4"}, "class_dim is 4, but the output 'output' has only 4 dims");
  expect_refused({"--class-dim=1", "--loss=mse"}, "--class-dim does not apply to --loss mse");
}

TEST(ToolTrainData, NotesRowsThatRepeatWithinABatch) {
  const auto note = [](const std::string& batch) {
    const Outcome outcome =
        penstock({"train", kArchives + "mlp.pt2", "--loss=mse", "--data=" + kArchives + "mlp.safetensors",
                  "--ranks=1", "--steps=1", "--no-shuffle", "--quiet", "--batch=" + batch});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string text =
      "each batch of 24 rows contains some rows more than once: there are 20 training examples, and "
      "--no-shuffle wraps around\n";
  EXPECT_THAT(note("24"), HasSubstr(text));
  EXPECT_THAT(note("20"), testing::Not(HasSubstr("more than once")));
}

// Learning rates depend on the number of steps, which is known only when the data is open.
TEST(ToolTrainData, EpochsSetTheStepsOfTheLearningRate) {
  const TempDir dir;
  for (const std::string schedule : {"one_cycle", "wsd", "linear"}) {
    const auto rates = [&](const std::string& length) {
      losses(dir,
             {"--data=" + kArchives + "mlp.safetensors", "--batch=4", "--lr-schedule=" + schedule, length});
      return fields(dir / "log", "lr");
    };
    const auto expected = rates("--steps=20");
    ASSERT_EQ(expected.size(), 20U);
    EXPECT_NE(expected[8], expected[19]);
    EXPECT_EQ(rates("--epochs=4"), expected) << schedule;
  }
}

TEST(ToolTrainData, CommandLineOverridesLengthOfFile) {
  const TempDir dir;
  const std::string data = "--data=" + kArchives + "mlp.safetensors";
  std::ofstream(dir / "steps.toml") << "steps = 7\n";
  std::ofstream(dir / "epochs.toml") << "epochs = 3\n";
  EXPECT_EQ(losses(dir, {data, "--batch=10", "--config=" + (dir / "steps.toml"), "--epochs=1"}).size(), 2U);
  EXPECT_EQ(losses(dir, {data, "--batch=10", "--config=" + (dir / "epochs.toml"), "--steps=3"}).size(), 3U);
}

TEST(ToolTrainData, ResumedRunsContinueTheEpochBitwise) {
  const TempDir dir;
  const std::vector<std::string> run{"--data=" + kArchives + "mlp.safetensors", "--batch=8"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), run.begin(), run.end());
    return losses(dir, more);
  };
  for (const std::string order : {"", "--drop-last", "--no-shuffle"}) {
    SCOPED_TRACE(order);
    const std::vector<std::string> options =
        order.empty() ? std::vector<std::string>{} : std::vector<std::string>{order};
    const std::string saved = "--checkpoint=" + (dir / ("saved" + order));
    const auto add = [&](std::vector<std::string> more) {
      more.insert(more.end(), options.begin(), options.end());
      return with(more);
    };
    const auto all = add({"--steps=7"});
    ASSERT_EQ(all.size(), 7U);
    auto parts = add({"--steps=4", saved});
    // File order is that of the checkpoint, whether or not the option is given again.
    const auto rest = order == "--no-shuffle" ? with({"--steps=7", "--resume", saved})
                                              : add({"--steps=7", "--resume", saved});
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, all);
  }
}

// Of 20 rows, 16 are trained on if 4 are held out: epochs then have 2 steps instead of 3.
TEST(ToolTrainData, ResumedRunsHoldOutSameRows) {
  const TempDir dir;
  const std::string data = kArchives + "mlp.safetensors";
  const auto with = [&](std::vector<std::string> more) {
    for (const std::string& word : {"--data=" + data, std::string("--batch=8"), std::string("--seed=2"),
                                    std::string("--validation=0.2")})
      more.push_back(word);
    return losses(dir, more);
  };
  const auto held_out = with({"--steps=9", "--eval-every=3"}), all = with({"--steps=9"});
  ASSERT_EQ(held_out.size(), 9U);
  ASSERT_NE(held_out, all);
  const std::string saved = "--checkpoint=" + (dir / "saved"), other = "--checkpoint=" + (dir / "other");
  auto parts = with({"--steps=3", "--eval-every=3", saved});
  // The second resumed run reads a checkpoint of a run without validations.
  for (const char* const steps : {"--steps=6", "--steps=9"})
    for (const std::string& loss : with({steps, "--resume", saved})) parts.push_back(loss);
  EXPECT_EQ(parts, held_out);
  parts = with({"--steps=3", other});
  const Outcome refused =
      penstock({"train", kArchives + "mlp.pt2", "--loss=mse", "--microbatches=2", "--ranks=1", "--batch=8",
                "--seed=2", "--steps=9", "--data=" + data, "--resume", other, "--eval-every=3"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("held out no rows"), HasSubstr("--validation-data")));
  for (const std::string& loss :
       with({"--steps=9", "--resume", other, "--eval-every=3", "--validation-data=" + data}))
    parts.push_back(loss);
  EXPECT_EQ(parts, all);
}

TEST(ToolTrainData, ReadsFilesDirectoriesAndPatterns) {
  const TempDir dir;
  const Tensors all = checkpoint::load_safetensors(kArchives + "mlp.safetensors");
  std::filesystem::create_directory(dir / "parts");
  std::vector<std::string> files;
  for (const auto& [first, last] : {std::pair{0, 7}, {7, 8}, {8, 20}}) {
    std::vector<std::int64_t> rows;
    for (std::int64_t row = first; row < last; ++row) rows.push_back(row);
    files.push_back(dir / ("parts/" + std::to_string(files.size()) + ".safetensors"));
    checkpoint::save_safetensors(files.back(), rows_of(all, rows));
  }
  const auto expected = losses(
      dir, {"--data=" + kArchives + "mlp.safetensors", "--batch=8", "--epochs=2", "--dp=2", "--ranks=2"});
  ASSERT_EQ(expected.size(), 6U);
  for (const std::string& data :
       {dir / "parts", dir / "parts/*.safetensors", files[0] + "," + files[1] + "," + files[2]})
    EXPECT_EQ(losses(dir, {"--data=" + data, "--batch=8", "--epochs=2", "--dp=2", "--ranks=2"}), expected)
        << data;
}

TEST(ToolTrainData, ValidatesOnFileOfItsOwn) {
  const TempDir dir;
  const Tensors all = checkpoint::load_safetensors(kArchives + "mlp.safetensors");
  checkpoint::save_safetensors(dir / "first.safetensors", rows_of(all, {0, 1, 2, 3, 4, 5, 6, 7}));
  checkpoint::save_safetensors(dir / "rest.safetensors", rows_of(all, {8, 9, 10}));
  const auto validation = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"train",   kArchives + "mlp.pt2", "--loss=mse", "--microbatches=2",
                                   "--lr=0",  "--ranks=1",           "--steps=1",  "--batch=4",
                                   "--quiet", "--eval-every=1"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = penstock(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const auto at = outcome.out.find("validation loss ");
    return at == std::string::npos ? outcome.out : outcome.out.substr(at);
  };
  checkpoint::save_safetensors(dir / "both.safetensors", rows_of(all, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(validation(
                {"--data=" + (dir / "first.safetensors"), "--validation-data=" + (dir / "rest.safetensors")}),
            validation({"--data=" + (dir / "both.safetensors"), "--no-shuffle", "--validation=0.28"}));
}

}  // namespace
}  // namespace penstock::test
