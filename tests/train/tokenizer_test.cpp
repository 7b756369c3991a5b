// Tokenizers, compared with the Python package `tokenizers`.
#include "support/error_message.h"
#include "support/program.h"
#include "support/temp_dir.h"
#include "train/small_tokenizers.h"

#include <penstock/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>

namespace penstock::train {
namespace {

using nlohmann::json;

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
  std::size_t families = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir.path())) {
    if (file.path().extension() != ".json") continue;
    ++families;
    SCOPED_TRACE(file.path());
    const Tokenizer tokenizer = Tokenizer::load(file.path());
    const json cases =
        json::parse(test::slurp(std::filesystem::path(file.path()).replace_extension(".cases")));
    EXPECT_EQ(cases.size(), 78U);
    for (const json& one : cases) {
      const std::string text = one.at("text");
      const std::vector<std::uint32_t> tokens = tokenizer.encode(text);
      EXPECT_EQ(tokens, one.at("tokens").get<std::vector<std::uint32_t>>()) << text;
      EXPECT_EQ(decoded(tokenizer, tokens), one.at("decoded").get<std::string>()) << text;
    }
  }
  EXPECT_EQ(families, 40U);
}

TEST(TrainTokenizer, MergesPairsAndFindsAddedTokens) {
  const Tokenizer tokenizer = parsed(small_tokenizer());
  EXPECT_EQ(tokenizer.size(), 262);
  EXPECT_EQ(tokenizer.encode("the the"), (std::vector<std::uint32_t>{258, 259}));
  EXPECT_EQ(tokenizer.encode("ahe<|end|>the"), (std::vector<std::uint32_t>{'a', 257, 260, 258}));
  EXPECT_EQ(tokenizer.encode("<|end|>!<|end"), (std::vector<std::uint32_t>{261, '<', '|', 'e', 'n', 'd'}));
  EXPECT_EQ(tokenizer.encode(""), std::vector<std::uint32_t>{});
  EXPECT_EQ(tokenizer.decode(std::vector<std::int64_t>{259, 262, 1000, -1}), " the\ufffd\ufffd\ufffd");
  EXPECT_EQ(tokenizer.id_of("<|end|>"), 260U);
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

// A word of 4 bytes becomes one token of 4 bytes; a vector that grows has up to 3 times that. For the marks
// of a sentence tokenizer, there are two more copies of the text; in one of them, a space takes 3 bytes.
TEST(TrainTokenizer, EncodingTakesFewBytesPerByte) {
  constexpr std::size_t words = 8 << 20;
  std::string text;
  text.reserve(4 * words);
  for (std::size_t i = 0; i < words; ++i) text += " the";
  const std::int64_t before = peak_memory();
  EXPECT_EQ(parsed(small_tokenizer()).encode(text).size(), words);
  EXPECT_LT(peak_memory() - before, static_cast<std::int64_t>(4 * text.size()));
  EXPECT_EQ(parsed(small_sentence_tokenizer()).encode(text).size(), words + 1);
  EXPECT_LT(peak_memory() - before, static_cast<std::int64_t>(6 * text.size()));
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
  const auto list = [](const char* name, const json& steps) {
    return json{{"type", "Sequence"}, {name, steps}};
  };
  const json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}},
      marks{{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
  EXPECT_THAT(refused([&](json& t) {
                t["normalizer"] = list("normalizers", {{{"type", "NFC"}}, {{"type", "NFKC"}}});
              }),
              HasSubstr("file, normalizer: the normalizer 'NFKC' is not supported"));
  EXPECT_THAT(refused([](json& t) {
                t["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", " "}};
              }),
              HasSubstr("a regular expression in 'Replace'"));
  EXPECT_THAT(
      refused([](json& t) {
        t["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "<|end|>"}}}, {"content", ""}};
        t["added_tokens"][0]["normalized"] = true;
      }),
      HasSubstr("the added token '<|end|>', which the normalizer removes"));
  EXPECT_THAT(refused([](json& t) { t.erase("pre_tokenizer"); }),
              HasSubstr("without tokens for all bytes and without unk_token"));
  EXPECT_THAT(refused([](json& t) {
                t["pre_tokenizer"] = {{"type", "Whitespace"}};
              }),
              HasSubstr("file, pre_tokenizer: the pre-tokenizer 'Whitespace'"));
  EXPECT_THAT(refused([&](json& t) {
                t["pre_tokenizer"] = list("pretokenizers", {bytes, {{"type", "Digits"}}});
              }),
              HasSubstr("'Digits' after ByteLevel"));
  EXPECT_THAT(refused([&](json& t) {
                t["pre_tokenizer"] = list("pretokenizers", {marks, marks});
              }),
              HasSubstr("a second Metaspace"));
  EXPECT_THAT(refused([&](json& t) {
                t["pre_tokenizer"] = marks;
                t["normalizer"] = {{"type", "NFC"}};
              }),
              HasSubstr("the prepend_scheme 'first' together with a normalizer"));
  EXPECT_THAT(refused([&](json& t) {
                t["pre_tokenizer"] = marks;
                t["pre_tokenizer"]["prepend_scheme"] = "last";
              }),
              HasSubstr("the prepend_scheme 'last'"));
  EXPECT_THAT(refused([](json& t) {
                t["decoder"] = {{"type", "WordPiece"}};
              }),
              HasSubstr("file, decoder: the decoder 'WordPiece'"));
  EXPECT_THAT(refused([](json& t) { t["model"]["type"] = "WordPiece"; }), HasSubstr("WordPiece"));
  EXPECT_THAT(refused([](json& t) { t["model"]["dropout"] = 0.1; }), HasSubstr("dropout"));
  EXPECT_THAT(refused([](json& t) { t["model"]["end_of_word_suffix"] = "</w>"; }), HasSubstr("suffix"));
  EXPECT_THAT(refused([](json& t) { t["model"]["vocab"].erase("a"); }), HasSubstr("(97 is missing)"));
  EXPECT_THAT(refused([](json& t) { t["added_tokens"][0]["single_word"] = true; }),
              HasSubstr("single_word of '<|end|>'"));
  EXPECT_THAT(refused([](json& t) {
                t["pre_tokenizer"] = {
                    {"type", "Sequence"},
                    {"pretokenizers",
                     {{{"type", "Split"}, {"pattern", {{"Regex", "\\d+"}}}, {"behavior", "Isolated"}},
                      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
              }),
              HasSubstr("the split pattern '\\d+'"));
  const auto refused_split = [&](const json& pattern, const char* behavior, bool invert) {
    return refused([&](json& t) {
      const json split{{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
      t["pre_tokenizer"] = list("pretokenizers", {split, bytes});
    });
  };
  EXPECT_THAT(refused_split({{"String", " "}}, "Removed", false), HasSubstr("the behavior 'Removed'"));
  EXPECT_THAT(refused_split({{"Regex", "."}}, "Removed", false), HasSubstr("the behavior 'Removed'"));
  EXPECT_THAT(refused_split({{"String", ""}}, "MergedWithNext", false), HasSubstr("an empty pattern"));
  EXPECT_THAT(refused_split({{"String", " "}}, "MergedWithNext", true), HasSubstr("an inverted split"));
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
  EXPECT_THAT(wrong([](json& t) { t["added_tokens"][1]["id"] = 300; }),
              HasSubstr("'<|end|>!' has the id 300 instead of 261, which continues the vocabulary"));
  EXPECT_THAT(wrong([](json& t) { t["added_tokens"][0]["content"] = "the"; }),
              HasSubstr("'the' has the id 260 instead of 258, as in the vocabulary"));
  EXPECT_THAT(wrong([](json& t) {
                t["added_tokens"][0] = {{"id", 258}, {"content", "the"}};
                t["added_tokens"][1] = {{"id", 258}, {"content", "the"}};
              }),
              HasSubstr("two added tokens are 'the'"));
  EXPECT_THAT(wrong([](json& t) {
                t["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "__"}};
              }),
              HasSubstr("replacement must be one character, not '__'"));
  EXPECT_THAT(wrong([](json& t) {
                t["pre_tokenizer"] = {{"type", "Metaspace"},
                                      {"replacement", "_"},
                                      {"prepend_scheme", "always"},
                                      {"add_prefix_space", false}};
              }),
              HasSubstr("add_prefix_space does not agree with the prepend_scheme 'always'"));
  EXPECT_THAT(wrong([](json& t) {
                t["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", -1}, {"stop", 0}};
              }),
              HasSubstr("start must not be negative"));
  EXPECT_THAT(wrong([](json& t) {
                t.erase("pre_tokenizer");
                t["model"]["unk_token"] = "<unk>";
              }),
              HasSubstr("the vocabulary has no token '<unk>', the unk_token"));
  EXPECT_THAT(wrong([](json& t) { t["model"]["merges"][1] = "x y z"; }), HasSubstr("merge 1"));
  EXPECT_THAT(wrong([](json& t) {
                t["model"]["merges"][2] = json::array({"t", "e"});
              }),
              HasSubstr("has no token 'te'"));
}

}  // namespace
}  // namespace penstock::train
