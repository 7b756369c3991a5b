// `penstock train --document-separator`: exported models compared with Python, which sees one document after
// the other, and the GPT.
#include "support/lines.h"
#include "support/program.h"
#include "tools/train/small_gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace penstock::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kPackedArchives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";

// The tokens of make_packed.py; token 4 ends a document.
void write_packed_tokens(const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < 300; ++i) {
    file.put(static_cast<char>((i * i + i / 5) % 11));
    file.put(0);
  }
}

std::vector<double> packed_losses(const TempDir& dir, std::vector<std::string> words) {
  words.insert(words.begin(), "train");
  words.insert(words.end(),
               {"--data=" + (dir / "tokens.bin"), "--document-separator=4", "--batch=8", "--seed=5",
                "--lr=0.01", "--steps=10", "--microbatches=2", "--log-json=" + (dir / "log"), "--quiet"});
  std::filesystem::remove(dir / "log");
  const Outcome outcome = penstock(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<double> losses;
  for (const nlohmann::json& line : log_of(dir / "log")) losses.push_back(line.at("loss"));
  return losses;
}

void expect_same_losses(const std::vector<double>& losses, const std::vector<double>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 2e-5) << i + 1;
}

TEST(ToolTrainDocuments, ExportedModelsHaveLossesOfPython) {
  const TempDir dir;
  write_packed_tokens(dir / "tokens.bin");
  for (const std::string name : {"packed", "packed_additive"}) {
    std::vector<double> expected;
    for (const std::string& line : lines_of(slurp(kPackedArchives + name + "_losses.txt")))
      expected.push_back(std::stod(line));
    ASSERT_EQ(expected.size(), 10U);
    for (const std::vector<std::string>& topology : {std::vector<std::string>{"--ranks=1"},
                                                     {"--pp=2", "--dp=2"},
                                                     {"--pp=3", "--recompute"},
                                                     {"--tp=2", "--tp-plan=layers.*.value=rowwise"},
                                                     {"--pp=2", "--dp=2", "--sharding=full"},
                                                     {"--pp=2", "--dp=2", "--sharding=gradients"}}) {
      SCOPED_TRACE(name + " " + topology[0]);
      std::vector<std::string> words{kPackedArchives + name + ".pt2"};
      words.insert(words.end(), topology.begin(), topology.end());
      if (name == "packed_additive") words.emplace_back("--no-boundary-targets");
      expect_same_losses(packed_losses(dir, words), expected);
    }
  }
}

TEST(ToolTrainDocuments, GptDoesNotDependOnTopologyAndGeneratesDocuments) {
  const TempDir dir;
  write_packed_tokens(dir / "tokens.bin");
  const std::vector<std::string> gpt{"--layers=2", "--width=16", "--heads=2", "--seq=9", "--eval-every=5"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.end(), gpt.begin(), gpt.end());
    return packed_losses(dir, more);
  };
  const std::vector<double> expected = run({"--ranks=1", "--checkpoint=" + (dir / "run")});
  expect_same_losses(run({"--pp=2", "--dp=2"}), expected);
  expect_same_losses(run({"--pp=2", "--tp=2"}), expected);
  EXPECT_NE(run({"--ranks=1", "--no-boundary-targets"}), expected);
  // What is before a separator does not change what follows it.
  const auto generated = [&](const std::string& prompt) {
    const Outcome outcome = penstock({"generate", "--checkpoint=" + (dir / "run"),
                                      "--prompt-tokens=" + prompt, "--max-tokens=12", "--greedy"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_THAT(generated("9,1,4,7"), testing::EndsWith(generated("7")));
}

TEST(ToolTrainDocuments, RefusesWhatDoesNotFit) {
  const TempDir dir;
  write_packed_tokens(dir / "tokens.bin");
  std::ofstream(dir / "text.txt") << std::string(200, 'a');
  const auto expect = [&](const std::vector<std::string>& words, const std::string& problem,
                          const std::string& hint) {
    std::vector<std::string> all{"train"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = penstock(all);
    EXPECT_EQ(outcome.code, 2) << problem;
    EXPECT_THAT(outcome.err, HasSubstr(problem));
    EXPECT_THAT(outcome.err, HasSubstr(hint));
  };
  const std::string data = "--data=" + (dir / "tokens.bin"), text = "--data=" + (dir / "text.txt"),
                    separator = "--document-separator=4";
  expect({data, "--document-separator=11"}, "--document-separator 11 is not in the vocabulary of 11 tokens",
         "that ends a document in the data");
  expect({data, "--document-separator=end"}, "'end' is not a token", "--tokenizer FILE.json");
  expect({text, "--tokenizer=bytes", "--document-separator=end"}, "'end' is 3 tokens", "one token");
  expect({data, "--no-boundary-targets"}, "--no-boundary-targets needs --document-separator", "give");
  expect({text, separator}, "--document-separator 4 is not in the vocabulary of 1 tokens", "ends a document");
  expect({text, "--document-separator=b"}, "'b' is 0 tokens of the tokenizer", "one token");
  expect({kPackedArchives + "mlp.pt2", "--data=" + kPackedArchives + "mlp.safetensors", separator},
         "--document-separator is for tokens", "FILE.bin");
  expect({kPackedArchives + "causal.pt2", data, separator},
         "needs a model that takes position_ids or attention_mask", "leave out --document-separator");
  expect({kPackedArchives + "padding_mask.pt2", data, separator},
         "the input 'attention_mask' is int64[4, 9], which cannot describe documents",
         "[batch, 1, length, length]");
}

// Characters are tokens in the order of their codes. The checkpoint tells generate where documents end.
TEST(ToolTrainDocuments, SeparatorMayBeCharacter) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + (i * i + i / 5) % 11);
  std::ofstream(dir / "text.txt") << text;
  write_packed_tokens(dir / "tokens.bin");
  const auto run = [&](const std::string& data, const std::string& separator) {
    const Outcome outcome =
        penstock({"train", "--data=" + data, "--document-separator=" + separator, "--no-boundary-targets",
                  "--layers=1", "--width=16", "--heads=2", "--seq=9", "--batch=8", "--steps=3", "--ranks=1",
                  "--sample=0", "--checkpoint=" + (dir / separator), "--log-json=" + (dir / "log")});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return log_of(dir / "log").back().at("loss").dump();
  };
  const std::string characters = run(dir / "text.txt", "e");
  EXPECT_EQ(characters, run(dir / "tokens.bin", "4"));
  const auto generated = [&](const std::string& prompt) {
    const Outcome outcome = penstock(
        {"generate", "--checkpoint=" + (dir / "e"), "--prompt=" + prompt, "--max-tokens=12", "--greedy"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_THAT(generated("jbeh"), testing::EndsWith(generated("h")));
}

// A separator may be a byte of a text.
TEST(ToolTrainDocuments, SeparatorMayBeText) {
  const TempDir dir;
  std::ofstream(dir / "text.txt") << [] {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "one\ntwo\n";
    return text;
  }();
  const auto run = [&](const std::string& separator) {
    const Outcome outcome = penstock({"train", "--data=" + (dir / "text.txt"), "--tokenizer=bytes",
                                      "--document-separator=" + separator, "--layers=1", "--width=16",
                                      "--heads=2", "--seq=8", "--batch=8", "--steps=2", "--ranks=1",
                                      "--sample=0", "--log-json=" + (dir / "log"), "--quiet"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return log_of(dir / "log").back().at("loss").dump();
  };
  EXPECT_EQ(run("\n"), run("10"));
  EXPECT_NE(run("\n"), run("e"));
}

}  // namespace
}  // namespace penstock::test
