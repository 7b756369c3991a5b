// `penstock generate` through the real binaries: exported models compared with a loop in Python, the GPT with
// the sample of its training run.
#include "support/lines.h"
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ToolGenerate, ContinuesTokensAsPythonDoes) {
  const char* given = std::getenv("PENSTOCK_PYTHON");
  const std::string interpreter = given != nullptr && *given != '\0' ? given : "python3";
  const TempDir dir;
  const Outcome made = run_program(
      {interpreter, PENSTOCK_SOURCE_DIR "/tests/tools/commands/generated_tokens.py", "make", dir.path()});
  if (made.code == 77) GTEST_SKIP() << "this Python lacks torch, numpy or safetensors";
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string other = "--checkpoint=" + dir / "other.safetensors";
  // The cases of the script.
  const std::vector<std::vector<std::string>> cases = {
      {"dynamic.pt2", "--greedy"},
      {"dynamic.pt2", "--temperature=1.5", "--seed=4"},
      {"dynamic.pt2", "--temperature=0.9", "--top-k=5", "--seed=5"},
      {"dynamic.pt2", "--temperature=1.2", "--top-p=0.7", "--seed=6"},
      {"dynamic.pt2", other, "--temperature=1.1", "--top-k=9", "--top-p=0.9", "--seed=7"},
      {"fixed.pt2", "--temperature=0"},
      {"fixed.pt2", "--temperature=1", "--top-k=4", "--top-p=0.8", "--seed=8"}};
  const std::vector<std::string> expected = lines_of(made.out);
  ASSERT_EQ(expected.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::vector<std::string> words{"generate", dir / cases[i][0], "--prompt-tokens=3,1,4", "--max-tokens=15"};
    words.insert(words.end(), cases[i].begin() + 1, cases[i].end());
    const Outcome outcome = penstock(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, expected[i] + "\n") << "case " << i;
    if (i % 3 != 1) continue;  // a few of them: each starts processes
    words.emplace_back(i == 1 ? "--pp=2" : "--ranks=3");
    words.emplace_back(i == 1 ? "--verbose" : "--quiet");
    const Outcome over_ranks = penstock(words);
    EXPECT_EQ(over_ranks.code, 0) << over_ranks.err;
    EXPECT_EQ(over_ranks.out, outcome.out) << "case " << i << " over ranks";
    if (i == 1) {
      EXPECT_THAT(over_ranks.err, HasSubstr("penstock[1] info: launcher: "));
    } else {
      EXPECT_EQ(over_ranks.err, "");
    }
  }
  const auto refused = [&](std::vector<std::string> words, const std::string& text) {
    words.insert(words.begin(), "generate");
    const Outcome outcome = penstock(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(text));
  };
  const std::string model = dir / "dynamic.pt2";
  refused({dir / "acausal.pt2", "--prompt-tokens=3,1"}, "the model is not causal");
  refused({dir / "acausal.pt2", "--prompt-tokens=3,1", "--ranks=2"}, "the model is not causal");
  refused({model, "--prompt-tokens=13", "--ranks=2"}, "13");
  refused({model, "--prompt-tokens=3", "--ranks=90"}, "90");
  refused({model, "--prompt-tokens=3", "--ranks=0"}, "--ranks");
  refused({model, "--prompt-tokens=3", "--ranks=2", "--backend=mpi"}, "mpi");
  refused({model}, "needs a prompt of tokens");
  refused({model, "--prompt=a"}, "--prompt needs --tokenizer");
  refused({model, "--prompt-tokens=3,x"}, "'x' is not a token");
  refused({model, "--prompt-tokens=13"}, "13");
  refused({model, "--prompt-tokens=3", "--greedy", "--top-k=2"}, "--greedy always takes");
  refused({model, "--prompt-tokens=3", "--top-k=0"}, "--top-k must be at least 1");
  refused({model, "--prompt-tokens=3", "--top-p=1.5"}, "--top-p must be greater than 0");
  refused({model, "--prompt-tokens=3", "--temperature=-1"}, "--temperature must be at least 0");
  refused({PENSTOCK_SOURCE_DIR "/tests/train/archives/mlp.pt2", "--prompt-tokens=3"},
          "cannot supply its input 'input'");
  refused({}, "generate needs a model");
  refused({"--checkpoint=" + dir / "other.safetensors"}, "other.safetensors");
}

TEST(ToolGenerate, SuppliesPositionsMasksAndText) {
  const char* given = std::getenv("PENSTOCK_PYTHON");
  const std::string interpreter = given != nullptr && *given != '\0' ? given : "python3";
  const TempDir dir;
  const Outcome made =
      run_program({interpreter, PENSTOCK_SOURCE_DIR "/tests/tools/commands/generated_text.py", dir.path()});
  if (made.code == 77) GTEST_SKIP() << "this Python lacks torch";
  ASSERT_EQ(made.code, 0) << made.err;
  const auto expect_output = [](std::vector<std::string> words, const std::string& expected) {
    words.insert(words.begin(), "generate");
    words.insert(words.end(), {"--max-tokens=12", "--greedy"});
    const Outcome outcome = penstock(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, expected + "\n") << words[1];
  };
  // Each line: the model, the tokens, and their bytes in hexadecimal digits.
  const std::vector<std::string> lines = lines_of(made.out);
  ASSERT_EQ(lines.size(), 4U);
  for (const std::string& line : lines) {
    const std::size_t colon = line.find(':'), bar = line.find('|');
    const std::string model = dir / line.substr(0, colon), tokens = line.substr(colon + 1, bar - colon - 1);
    std::string text;
    for (std::size_t i = bar + 1; i + 1 < line.size(); i += 2)
      text += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
    expect_output({model, "--prompt-tokens=84,111,32"}, tokens);
    expect_output({model, "--prompt=To ", "--tokenizer=bytes"}, text);
    if (&line == &lines[1]) {
      expect_output({model, "--prompt-tokens=84,111,32", "--tokenizer=bytes", "--ranks=2"}, text);
    }
  }
  const auto refused = [&](std::vector<std::string> words, const std::string& text) {
    words.insert(words.begin(), "generate");
    const Outcome outcome = penstock(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(text));
  };
  const std::string model = dir / "bool.pt2";
  refused({model, "--prompt", "", "--tokenizer=bytes"}, "the prompt is empty");
  refused({model, "--prompt=a", "--tokenizer=words"}, "'words' is not a tokenizer");
  refused({dir / "layout.pt2", "--prompt-tokens=1"}, "cannot supply its input 'position_ids'");
  refused({dir / "two.pt2", "--prompt-tokens=1"}, "has 2 inputs besides position_ids");
  refused({"--checkpoint=" + dir.path(), "--tokenizer=bytes"}, "--tokenizer is for exported models");
}

TEST(ToolGenerate, ContinuesTextOfTrainedGpt) {
  const TempDir dir;
  const Outcome trained =
      penstock({"train", "--steps=3", "--layers=2", "--width=16", "--heads=2", "--seq=8", "--batch=8",
                "--ranks=2", "--sample=30", "--prompt=The ", "--seed=5", "--feed-forward=swiglu",
                "--positions=learned", "--untied", "--checkpoint=" + dir / "run"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome generated =
      penstock({"generate", "--checkpoint=" + dir / "run", "--prompt=The ", "--max-tokens=30", "--seed=5"});
  EXPECT_EQ(generated.code, 0) << generated.err;
  ASSERT_EQ(generated.out.size(), 4 + 30 + 1U);
  EXPECT_THAT(trained.out, HasSubstr("sample of generated text:\n" + generated.out));
  for (const char* const ranks : {"2", "4"}) {
    const Outcome split = penstock({"generate", "--checkpoint=" + dir / "run", "--prompt=The ",
                                    "--max-tokens=30", "--seed=5", "--ranks", ranks});
    EXPECT_EQ(split.code, 0) << split.err;
    EXPECT_EQ(split.out, generated.out) << ranks << " ranks";
  }
  const Outcome json = penstock(
      {"generate", "--checkpoint=" + dir / "run", "--prompt=The ", "--max-tokens=2", "--greedy", "--json"});
  EXPECT_THAT(json.out, AllOf(HasSubstr("{\"tokens\":["), HasSubstr("\"text\":\"The ")));
  EXPECT_THAT(json.err, testing::Not(HasSubstr("lacks")));
  const Outcome dropped = penstock({"generate", "--checkpoint=" + dir / "run",
                                    "--prompt=T\x01h\x02\x01"
                                    "e ",
                                    "--max-tokens=2", "--greedy"});
  EXPECT_THAT(dropped.out, testing::StartsWith("The "));
  EXPECT_THAT(dropped.err, HasSubstr("lacks these characters of --prompt: '\\x01\\x02'\n"));
  const Outcome both =
      penstock({"generate", "--checkpoint=" + dir / "run", "--prompt=The ", "--prompt-tokens=1,2"});
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("--prompt and --prompt-tokens are both given"));
  {
    std::fstream shard(dir / "run/step-00000003/shard-00001-of-00002.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
    shard.seekp(200);
    shard.put('\xff');
  }
  const Outcome damaged = penstock({"generate", "--checkpoint=" + dir / "run", "--prompt=The ", "--ranks=2"});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.err, HasSubstr("rank 1 failed first: "));
  EXPECT_THAT(damaged.err, HasSubstr("shard-00001-of-00002.safetensors"));
  const Outcome too_many =
      penstock({"generate", "--checkpoint=" + dir / "run", "--prompt=The ", "--ranks=5"});
  EXPECT_EQ(too_many.code, 2);
  EXPECT_THAT(too_many.err, HasSubstr("can be split into at most 4 stages, not 5"));
}

}  // namespace
}  // namespace penstock::test
