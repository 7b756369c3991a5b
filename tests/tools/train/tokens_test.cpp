// Training on token files, through the real binaries: an exported model compared with Python, and the GPT.
#include "support/lines.h"
#include "support/program.h"
#include "tools/train/small_gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace penstock::test {
namespace {

using testing::HasSubstr;

const std::string kCausal = PENSTOCK_SOURCE_DIR "/tests/train/archives/causal";

// The tokens of make_causal.py, from `first` on.
template <class Token>
void write_tokens(const std::string& path, std::uint64_t first = 0, std::uint64_t end = 200) {
  std::ofstream file(path, std::ios::binary);
  for (std::uint64_t i = first; i < end; ++i) {
    const auto token = static_cast<Token>((3 * i * i + i / 7) % 17);
    file.write(reinterpret_cast<const char*>(&token), sizeof(Token));
  }
}

// The losses of a log as text, so that equal means bitwise equal.
std::vector<std::string> losses_in(const std::string& path) {
  std::vector<std::string> losses;
  for (const nlohmann::json& line : log_of(path)) losses.push_back(line.at("loss").dump());
  return losses;
}

std::vector<std::string> train_tokens(const TempDir& dir, bool gpt, const std::vector<std::string>& more) {
  std::vector<std::string> words{"train"};
  if (gpt) {
    for (const char* const word : {"--layers=2", "--width=16", "--heads=2", "--seq=6"})
      words.emplace_back(word);
  } else {
    words.push_back(kCausal + ".pt2");
  }
  words.push_back("--log-json=" + (dir / "log"));
  words.insert(words.end(), {"--batch=8", "--seed=5", "--lr=0.01", "--quiet"});
  words.insert(words.end(), more.begin(), more.end());
  std::filesystem::remove(dir / "log");
  const Outcome outcome = penstock(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return losses_in(dir / "log");
}

void expect_close(const std::vector<std::string>& losses, const std::vector<std::string>& expected,
                  double tolerance) {
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(std::stod(losses[i]), std::stod(expected[i]), tolerance) << "step " << i + 1;
}

TEST(ToolTrainTokens, ExportedModelHasLossesOfPython) {
  const TempDir dir;
  write_tokens<std::uint16_t>(dir / "tokens.bin");
  const std::vector<std::string> expected = lines_of(slurp(kCausal + "_losses.txt"));
  ASSERT_EQ(expected.size(), 12U);
  const std::string data = "--data=" + (dir / "tokens.bin");
  expect_close(train_tokens(dir, false, {data, "--steps=12", "--ranks=1", "--microbatches=2"}), expected,
               2e-5);
  expect_close(train_tokens(dir, false, {data, "--steps=12", "--pp=2", "--dp=2", "--microbatches=2"}),
               expected, 2e-5);
  expect_close(train_tokens(dir, false,
                            {data, "--steps=12", "--tp=2", "--dp=2", "--sharding=full", "--microbatches=2"}),
               expected, 2e-5);
}

TEST(ToolTrainTokens, FilesFormOneStreamOfEitherType) {
  const TempDir dir;
  write_tokens<std::uint16_t>(dir / "tokens.bin");
  write_tokens<std::uint32_t>(dir / "wide.bin");
  std::filesystem::create_directory(dir / "parts");
  write_tokens<std::uint16_t>(dir / "parts/0.bin", 0, 47);
  write_tokens<std::uint16_t>(dir / "parts/1.bin", 47, 48);
  write_tokens<std::uint16_t>(dir / "parts/2.bin", 48, 200);
  for (const bool gpt : {false, true}) {
    SCOPED_TRACE(gpt ? "GPT" : "exported model");
    const auto run = [&](const std::string& data, std::vector<std::string> more) {
      more.insert(more.end(), {"--data=" + data, "--epochs=1", "--ranks=1", "--microbatches=2"});
      return train_tokens(dir, gpt, more);
    };
    const std::vector<std::string> expected = run(dir / "tokens.bin", {});
    ASSERT_EQ(expected.size(), 5U) << "34 sequences in batches of 8";
    EXPECT_EQ(run(dir / "wide.bin", {"--token-dtype=uint32"}), expected);
    EXPECT_EQ(run(dir / "parts", {}), expected);
    EXPECT_EQ(run(dir / "parts/*.bin", {}), expected);
    EXPECT_NE(run(dir / "tokens.bin", {"--no-shuffle"}), expected);
  }
}

TEST(ToolTrainTokens, GptDoesNotDependOnTopologyAndResumesBitwise) {
  const TempDir dir;
  write_tokens<std::uint16_t>(dir / "tokens.bin");
  const std::vector<std::string> data{"--data=" + (dir / "tokens.bin"), "--eval-every=3", "--microbatches=2"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.end(), data.begin(), data.end());
    return train_tokens(dir, true, more);
  };
  const std::vector<std::string> expected = run({"--steps=9", "--ranks=1"});
  ASSERT_EQ(expected.size(), 9U);
  EXPECT_LT(std::stod(expected.back()), std::stod(expected.front()));
  expect_close(run({"--steps=9", "--pp=2", "--dp=2"}), expected, 2e-5);
  expect_close(run({"--steps=9", "--pp=2", "--tp=2"}), expected, 2e-5);
  std::vector<std::string> parts = run({"--steps=4", "--ranks=1", "--checkpoint=" + (dir / "saved")});
  // The vocabulary follows from the data again.
  const auto rest = run({"--steps=9", "--ranks=1", "--resume", "--checkpoint=" + (dir / "saved")});
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, expected);
}

TEST(ToolTrainTokens, ShowsTokensInDryRun) {
  const TempDir dir;
  write_tokens<std::uint16_t>(dir / "tokens.bin");
  const Outcome outcome =
      penstock({"train", "--data=" + (dir / "tokens.bin"), "--seq=6", "--vocab=32", "--dry-run"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("200 tokens, vocabulary of 32"));
  EXPECT_THAT(outcome.out, HasSubstr("16 examples of 6 tokens per step"));
}

// A sparse file takes no space.
TEST(ToolTrainTokens, AnnouncesThatLargeFilesAreRead) {
  const TempDir dir;
  write_tokens<std::uint16_t>(dir / "tokens.bin");
  const auto errors = [&] {
    const Outcome outcome = penstock({"train", "--data=" + (dir / "tokens.bin"), "--seq=6", "--dry-run"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  EXPECT_EQ(errors(), "");
  std::filesystem::resize_file(dir / "tokens.bin", 2 * 250'000'000);
  const std::string large = errors();
  EXPECT_THAT(large, testing::StartsWith("reading the 250000000 tokens of '" + (dir / "tokens.bin")));
  EXPECT_THAT(large, testing::EndsWith("\n40% of the tokens are read\n80% of the tokens are read\n"));
}

// A text of `bytes` is a stream of tokens below 256.
TEST(ToolTrainTokenizer, TextsAreStreamsOfTheirTokens) {
  const TempDir dir;
  write_tokens<std::uint16_t>(dir / "tokens.bin");
  write_tokens<char>(dir / "text.txt");
  for (const bool gpt : {false, true}) {
    SCOPED_TRACE(gpt ? "GPT" : "exported model");
    const auto run = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"--epochs=2", "--pp=2", "--dp=2", "--microbatches=2"});
      return train_tokens(dir, gpt, more);
    };
    std::vector<std::string> files{"--data=" + (dir / "tokens.bin")};
    if (gpt) files.emplace_back("--vocab=256");
    const std::vector<std::string> expected = run(files);
    ASSERT_EQ(expected.size(), 10U);
    EXPECT_EQ(run({"--data=" + (dir / "text.txt"), "--tokenizer=bytes"}), expected);
  }
}

// Characters are tokens in the order of their codes, from 0. Their sequences are read like those of tokens.
TEST(ToolTrainTokenizer, CharactersAreReadLikeTheirTokens) {
  const TempDir dir;
  write_tokens<std::uint16_t>(dir / "tokens.bin");
  write_tokens<std::uint16_t>(dir / "last.bin", 120, 200);
  const auto write_text = [&](const std::string& name, std::uint64_t first, std::uint64_t end) {
    std::ofstream file(dir / name);
    for (std::uint64_t i = first; i < end; ++i) file << static_cast<char>('a' + (3 * i * i + i / 7) % 17);
  };
  std::filesystem::create_directory(dir / "parts");
  write_text("all.txt", 0, 200);
  write_text("parts/1.txt", 0, 77);
  write_text("parts/2.txt", 77, 200);
  write_text("last.txt", 120, 200);
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--epochs=2"},
           {"--epochs=2", "--drop-last", "--dp=2", "--ranks=2", "--microbatches=2"},
           {"--steps=7", "--no-shuffle"},
           {"--steps=4", "--eval-every=2", "--validation=0.2"}}) {
    SCOPED_TRACE(more[0] + " " + more.back());
    const auto run = [&](const std::string& data) {
      std::vector<std::string> words{"--data=" + data};
      words.insert(words.end(), more.begin(), more.end());
      return train_tokens(dir, true, words);
    };
    const std::vector<std::string> expected = run(dir / "tokens.bin");
    ASSERT_FALSE(expected.empty());
    EXPECT_EQ(run(dir / "all.txt"), expected);
    EXPECT_EQ(run(dir / "parts"), expected);
    EXPECT_EQ(run((dir / "parts/1.txt") + "," + (dir / "parts/2.txt")), expected);
  }
  const auto validation = [&](const std::string& data, const std::string& other) {
    const Outcome outcome = penstock({"train", "--layers=1", "--width=8", "--heads=1", "--seq=6", "--batch=8",
                                      "--ranks=1", "--steps=1", "--eval-every=1", "--sample=0",
                                      "--data=" + data, "--validation-data=" + other});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const auto at = outcome.out.find("validation loss ");
    return at == std::string::npos ? outcome.out : outcome.out.substr(at);
  };
  EXPECT_EQ(validation(dir / "all.txt", dir / "last.txt"), validation(dir / "tokens.bin", dir / "last.bin"));
  std::ofstream(dir / "other.txt") << "abcdefz";
  const Outcome other = penstock({"train", "--seq=6", "--data=" + (dir / "all.txt"), "--eval-every=1",
                                  "--validation-data=" + (dir / "other.txt")});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("other.txt': character 6 is 'z', which is not in the training data"));
}

// Writes a tokenizer with a token for "the", and one for the end of a text.
void write_tokenizer(const std::string& path) {
  nlohmann::json vocabulary;
  for (int byte = 0, next = 0x100; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    const int code = printable ? byte : next++;
    std::string name(1, static_cast<char>(code));
    if (code >= 0x80) name = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
    vocabulary[name] = byte;
  }
  vocabulary["th"] = 256;
  vocabulary["the"] = 257;
  const nlohmann::json tokenizer{
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"added_tokens", nlohmann::json::array({nlohmann::json{{"id", 258}, {"content", "<|end|>"}}})},
      {"model",
       {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array({"t h", "th e"})}}}};
  std::ofstream(path) << tokenizer.dump();
}

TEST(ToolTrainTokenizer, TrainsGptOnTextAndDecodesSample) {
  const TempDir dir;
  write_tokenizer(dir / "tokenizer.json");
  const std::string data = "--data=" + (dir / "text.txt"),
                    tokenizer = "--tokenizer=" + (dir / "tokenizer.json");
  std::string text;
  std::ofstream tokens(dir / "tokens.bin", std::ios::binary);
  const auto add = [&](std::uint16_t token) { tokens.write(reinterpret_cast<const char*>(&token), 2); };
  for (int i = 0; i < 60; ++i) {
    text += "then<|end|>";
    for (const std::uint16_t token : std::initializer_list<std::uint16_t>{257, 'n', 258}) add(token);
  }
  tokens.close();
  std::ofstream(dir / "text.txt") << text;
  const std::vector<std::string> steps{"--steps=4", "--ranks=1", "--microbatches=2"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.end(), steps.begin(), steps.end());
    return train_tokens(dir, true, more);
  };
  const std::vector<std::string> expected = run({"--data=" + (dir / "tokens.bin"), "--vocab=259"});
  ASSERT_EQ(expected.size(), 4U);
  EXPECT_EQ(run({data, tokenizer}), expected);
  const Outcome outcome =
      penstock({"train", "--data=" + (dir / "tokens.bin"), tokenizer, "--layers=1", "--width=32", "--heads=2",
                "--seq=9", "--batch=8", "--microbatches=1", "--ranks=1", "--steps=80", "--lr=0.02",
                "--sample=12", "--prompt=<|end|>the"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\n<|end|>then<|end|>then<|end|>then<|end|>then"));
}

// In the style of SentencePiece, a text gets a space at the start, which decoding removes.
TEST(ToolTrainTokenizer, GeneratesWithTokensOfSentences) {
  using nlohmann::json;
  const TempDir dir;
  json vocabulary{{"<unk>", 0}, {"\u2581", 1}, {"a", 2}, {"\u00e9", 3}, {"\u2581a", 4}};
  const json marks{{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  std::ofstream(dir / "tokenizer.json") << json{{"pre_tokenizer", marks},
                                                {"decoder", marks},
                                                {"model",
                                                 {{"type", "BPE"},
                                                  {"unk_token", "<unk>"},
                                                  {"vocab", vocabulary},
                                                  {"merges", json::array({"\u2581 a"})}}}};
  std::ofstream text(dir / "text.txt");
  for (int i = 0; i < 100; ++i) text << (i > 0 ? " a\u00e9" : "a\u00e9");
  text.close();
  const Outcome trained = penstock(
      {"train", "--data=" + (dir / "text.txt"), "--tokenizer=" + (dir / "tokenizer.json"), "--layers=1",
       "--width=32", "--heads=2", "--seq=8", "--batch=8", "--microbatches=1", "--ranks=1", "--steps=80",
       "--lr=0.02", "--sample=4", "--prompt= a", "--checkpoint=" + dir / "run"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("sample of generated text:\na\u00e9 a\u00e9 a\n"));
  const Outcome generated = penstock(
      {"generate", "--checkpoint=" + dir / "run", "--prompt= a\u00e9", "--max-tokens=3", "--greedy"});
  EXPECT_EQ(generated.code, 0) << generated.err;
  EXPECT_EQ(generated.out, "a\u00e9 a\u00e9 a\n");
  EXPECT_THAT(generated.err, testing::Not(HasSubstr("--prompt")));
}

TEST(ToolTrainTokens, RefusesWhatDoesNotFit) {
  const TempDir dir;
  write_tokens<std::uint16_t>(dir / "tokens.bin");
  write_tokens<std::uint16_t>(dir / "odd.bin", 0, 199);
  write_tokens<std::uint16_t>(dir / "short.bin", 0, 1);
  std::ofstream(dir / "large.bin", std::ios::binary) << std::string(26, '\0') + std::string("\21\0\1\0", 4);
  std::ofstream(dir / "last.bin", std::ios::binary) << std::string(26, '\0') + std::string("\21\0", 2);
  std::ofstream(dir / "text.txt") << "a text";
  std::ofstream(dir / "long.txt") << std::string(200, 'a');
  const auto expect = [&](const std::vector<std::string>& words, const std::string& problem,
                          const std::string& hint) {
    std::vector<std::string> all{"train"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = penstock(all);
    EXPECT_EQ(outcome.code, 2) << problem;
    EXPECT_THAT(outcome.err, HasSubstr(problem));
    EXPECT_THAT(outcome.err, HasSubstr(hint));
  };
  const std::string archives = PENSTOCK_SOURCE_DIR "/tests/train/archives/",
                    data = "--data=" + (dir / "tokens.bin");
  expect({data, "--vocab=16"}, "the data has a token 16, but --vocab is 16", "use --vocab 17 or more");
  expect({"--data=" + (dir / "odd.bin"), "--token-dtype=uint32"}, "398 bytes, which is not a multiple of 4",
         "--token-dtype");
  expect({"--data=" + (dir / "short.bin")}, "the data has 1 token;", "use more data");
  expect({"--data=" + (dir / "missing.bin")}, "there is no file", "missing.bin");
  expect({data, "--prompt=a"}, "--prompt needs text", "--tokenizer FILE.json");
  expect({"--tokenizer=words"}, "'words' is not a tokenizer", "bytes");
  expect({"--tokenizer=missing.json"}, "there is no file 'missing.json'", "relative paths");
  expect({"--tokenizer=" + (dir / "text.txt")}, "text.txt", "");
  expect({"--tokenizer=bytes", "--vocab=255"}, "the tokenizer has 256 tokens, but --vocab is 255",
         "--vocab 256");
  expect({"--tokenizer=bytes", "--token-dtype=uint32"}, "--token-dtype is for token files", "FILE.bin");
  expect({kCausal + ".pt2", "--data=" + (dir / "text.txt")}, "cannot be trained on the characters of",
         "--tokenizer FILE.json");
  expect({kCausal + ".pt2", "--data=" + (dir / "long.txt"), "--tokenizer=bytes"},
         "token 0 of '" + (dir / "long.txt") + "' is 97, but the vocabulary of the model has 17 tokens",
         "the tokenizer of the model");
  expect({kCausal + ".pt2", "--data=" + archives + "language.safetensors", "--tokenizer=bytes"},
         "--tokenizer is for text, but --data names tensors", "FILE.txt");
  expect({kCausal + ".pt2", data, "--tokenizer=bytes"}, "--tokenizer needs text", "leave it out");
  expect({"--data=" + (dir / "text.txt"), "--token-dtype=uint32"}, "--token-dtype is for token files",
         "FILE.bin");
  expect({archives + "language.pt2", data}, "but this one takes 'tokens', 'weight'", ".safetensors");
  expect({archives + "mlp.pt2", data}, "but this one takes 'input'", ".safetensors");
  expect({kCausal + ".pt2", data, "--loss=mse"}, "but --loss is mse", "leave out --loss");
  expect({kCausal + ".pt2", data, "--seq=5"}, "the model takes sequences of 6 tokens, but --seq is 5",
         "--seq 6");
  // The last token of the second file is only a target.
  for (const std::string& wrong : {dir / "large.bin", dir / "tokens.bin," + dir / "last.bin"})
    expect({kCausal + ".pt2", "--data=" + wrong, "--batch=2", "--microbatches=1", "--ranks=1"},
           "token 13 of '" + wrong.substr(wrong.find(',') + 1) +
               "' is 17, but the vocabulary of the model has 17 tokens (0 to 16)",
           "larger vocabulary");
  expect({kCausal + ".pt2", data, "--vocab=17"}, "--vocab is for the built-in GPT", "leave it out");
}

}  // namespace
}  // namespace penstock::test
