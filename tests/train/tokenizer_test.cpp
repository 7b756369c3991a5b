// Tokenizers, compared with the Python package `tokenizers`.
#include "support/error_message.h"
#include "support/lines.h"
#include "support/program.h"
#include "support/temp_dir.h"
#include "train/text/split_pattern.h"
#include "train/text/tokenizer_file.h"

#include <penstock/base/error.h>
#include <penstock/train/tokenizer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>

namespace penstock::train {
namespace {

using nlohmann::json;

// Bytes, and merges for the words "the" and " the". In the vocabulary, U+0120 stands for a space.
json small_tokenizer() {
  json vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_character(static_cast<std::uint8_t>(byte))] = byte;
  const json more{{"th", 256}, {"he", 257}, {"the", 258}, {"\u0120the", 259}};
  vocabulary.update(more);
  return {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"added_tokens", json::array({json{{"id", 300}, {"content", "<|end|>"}},
                                        json{{"id", 301}, {"content", "<|end|>!"}}})},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocabulary},
            {"merges", json::array({"t h", "h e", json::array({"th", "e"}), "\u0120 the"})}}}};
}

Tokenizer parsed(const json& content) {
  return Tokenizer::parse(content.dump(), "file");
}

std::string decoded(const Tokenizer& tokenizer, const std::vector<std::uint32_t>& tokens) {
  return tokenizer.decode(std::vector<std::int64_t>(tokens.begin(), tokens.end()));
}

TEST(TrainTokenizer, MatchesPythonPackage) {
  const char* const python = std::getenv("PENSTOCK_PYTHON");
  if (python == nullptr || test::run_program({python, "-c", "import tokenizers"}).code != 0)
    GTEST_SKIP() << "PENSTOCK_PYTHON lacks the package tokenizers";
  const test::TempDir dir;
  const auto seed = std::to_string(std::random_device()());
  SCOPED_TRACE("seed " + seed);
  const test::Outcome made = test::run_program(
      {python, "-B", PENSTOCK_SOURCE_DIR "/tests/train/tokenizer_oracle.py", dir.path(), seed});
  ASSERT_EQ(made.code, 0) << made.err;
  for (const std::string name : {"gpt2", "llama3", "qwen2", "neox"}) {
    const Tokenizer tokenizer = Tokenizer::load(dir / (name + ".json"));
    std::size_t texts = 0;
    for (; std::filesystem::exists(dir / (name + "-" + std::to_string(texts) + ".txt")); ++texts) {
      const std::string file = dir / (name + "-" + std::to_string(texts));
      SCOPED_TRACE(file);
      const std::string text = test::slurp(file + ".txt");
      std::istringstream numbers(test::slurp(file + ".tokens"));
      std::vector<std::uint32_t> expected;
      for (std::uint32_t token = 0; numbers >> token;) expected.push_back(token);
      const std::vector<std::uint32_t> tokens = tokenizer.encode(text);
      EXPECT_EQ(tokens, expected) << text;
      EXPECT_EQ(decoded(tokenizer, tokens), test::slurp(file + ".decoded"));
    }
    EXPECT_EQ(texts, 75U);
  }
}

TEST(TrainTokenizer, MergesPairsAndFindsAddedTokens) {
  const Tokenizer tokenizer = parsed(small_tokenizer());
  EXPECT_EQ(tokenizer.size(), 302);
  EXPECT_EQ(tokenizer.encode("the the"), (std::vector<std::uint32_t>{258, 259}));
  EXPECT_EQ(tokenizer.encode("ahe<|end|>the"), (std::vector<std::uint32_t>{'a', 257, 300, 258}));
  EXPECT_EQ(tokenizer.encode("<|end|>!<|end"), (std::vector<std::uint32_t>{301, '<', '|', 'e', 'n', 'd'}));
  EXPECT_EQ(tokenizer.encode(""), std::vector<std::uint32_t>{});
  EXPECT_EQ(tokenizer.decode(std::vector<std::int64_t>{259, 299, 1000, -1}), " the\ufffd\ufffd\ufffd");
  EXPECT_EQ(tokenizer.id_of("<|end|>"), 300U);
  EXPECT_EQ(tokenizer.id_of("the"), 258U);
  EXPECT_EQ(tokenizer.id_of("missing"), std::nullopt);
}

TEST(TrainTokenizer, BytesTakeAnyText) {
  std::string text;
  for (int byte = 255; byte >= 0; --byte) text += static_cast<char>(byte);
  const std::vector<std::uint32_t> tokens = Tokenizer::bytes().encode(text);
  EXPECT_EQ(tokens.front(), 255U);
  EXPECT_EQ(tokens.back(), 0U);
  EXPECT_EQ(decoded(Tokenizer::bytes(), tokens), text);
  EXPECT_EQ(Tokenizer::bytes().size(), 256);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// The largest resident memory of this process so far, in bytes.
std::int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

// A word of 4 bytes becomes one token of 4 bytes; a vector that grows has up to 3 times that.
TEST(TrainTokenizer, EncodingTakesFewBytesPerByte) {
  const Tokenizer tokenizer = parsed(small_tokenizer());
  constexpr std::size_t words = 8 << 20;
  std::string text;
  text.reserve(4 * words);
  for (std::size_t i = 0; i < words; ++i) text += " the";
  const std::int64_t before = peak_memory();
  EXPECT_EQ(tokenizer.encode(text).size(), words);
  EXPECT_LT(peak_memory() - before, static_cast<std::int64_t>(4 * text.size()));
}
#endif

// Offsets are those of the text, however far the words before it reach.
TEST(TrainTokenizer, RefusesInvalidUtf8AtItsOffset) {
  const Tokenizer tokenizer = parsed(small_tokenizer());
  EXPECT_ERROR(tokenizer.encode("the the \xff"), UsageError, "not valid UTF-8 at byte 8");
  EXPECT_ERROR(tokenizer.encode("\u00e9'\xc3"), UsageError, "not valid UTF-8 at byte 3");
}

TEST(TrainTokenizer, RefusesInvalidUtf8) {
  const Tokenizer tokenizer = parsed(small_tokenizer());
  for (const std::string wrong :
       {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"})
    EXPECT_ERROR(tokenizer.encode("ab" + wrong), UsageError, "not valid UTF-8 at byte");
  EXPECT_EQ(tokenizer.encode("\xf4\x8f\xbf\xbf").size(), 4U);
}

TEST(TrainTokenizer, RefusesWhatItDoesNotSupport) {
  const auto refused = [](const std::function<void(json&)>& change) {
    json content = small_tokenizer();
    change(content);
    return test::error_message<UsageError>([&] { parsed(content); });
  };
  using testing::HasSubstr;
  EXPECT_THAT(
      refused([](json& t) {
        t["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "NFKC"}}}}};
      }),
      HasSubstr("a normalizer other than NFC ('NFKC')"));
  EXPECT_THAT(refused([](json& t) {
                t["normalizer"] = {{"type", "NFC"}};
                t["added_tokens"][0] = {{"id", 300}, {"content", "e\u0301"}, {"normalized", true}};
              }),
              HasSubstr("which the normalizer changes"));
  EXPECT_THAT(refused([](json& t) { t.erase("pre_tokenizer"); }), HasSubstr("without a pre-tokenizer"));
  EXPECT_THAT(refused([](json& t) { t["pre_tokenizer"]["type"] = "Metaspace"; }), HasSubstr("Metaspace"));
  EXPECT_THAT(refused([](json& t) { t["pre_tokenizer"]["add_prefix_space"] = true; }), HasSubstr("prefix"));
  EXPECT_THAT(refused([](json& t) { t["model"]["type"] = "WordPiece"; }), HasSubstr("WordPiece"));
  EXPECT_THAT(refused([](json& t) { t["model"]["dropout"] = 0.1; }), HasSubstr("dropout"));
  EXPECT_THAT(refused([](json& t) { t["model"]["end_of_word_suffix"] = "</w>"; }), HasSubstr("suffix"));
  EXPECT_THAT(refused([](json& t) { t["model"]["vocab"].erase("a"); }), HasSubstr("(97 is missing)"));
  EXPECT_THAT(refused([](json& t) { t["added_tokens"][0]["lstrip"] = true; }),
              HasSubstr("lstrip of '<|end|>'"));
  EXPECT_THAT(refused([](json& t) {
                t["pre_tokenizer"] = {
                    {"type", "Sequence"},
                    {"pretokenizers",
                     {{{"type", "Split"}, {"pattern", {{"Regex", "\\d+"}}}, {"behavior", "Isolated"}},
                      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
              }),
              HasSubstr("the split pattern '\\d+'"));
}

TEST(TrainTokenizer, NamesWhatIsWrongInFile) {
  const auto wrong = [](const std::function<void(json&)>& change) {
    json content = small_tokenizer();
    change(content);
    return test::error_message<ParseError>([&] { parsed(content); });
  };
  using testing::HasSubstr;
  EXPECT_THAT(wrong([](json& t) { t = 3; }), HasSubstr("file"));
  EXPECT_THAT(wrong([](json& t) { t.erase("model"); }), HasSubstr("model"));
  EXPECT_THAT(wrong([](json& t) { t["model"]["vocab"]["new"] = 97; }), HasSubstr("the same id 97"));
  EXPECT_THAT(wrong([](json& t) { t["model"]["vocab"]["new"] = -1; }), HasSubstr("-1 is out of range"));
  EXPECT_THAT(wrong([](json& t) { t["added_tokens"][0]["id"] = 98; }), HasSubstr("the same id 98"));
  EXPECT_THAT(wrong([](json& t) { t["model"]["merges"][1] = "x y z"; }), HasSubstr("merge 1"));
  EXPECT_THAT(wrong([](json& t) {
                t["model"]["merges"][2] = json::array({"t", "e"});
              }),
              HasSubstr("has no token 'te'"));
}

}  // namespace
}  // namespace penstock::train
