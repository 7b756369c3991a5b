// Tokenizers in the style of SentencePiece, whose texts are not divided into words: compared with merging
// one pair at a time, and by hand.
#include "train/small_tokenizers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <random>

namespace penstock::train {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::ElementsAreArray;

using Texts = std::vector<std::string>;

// Merges the pair with the lowest rank, the leftmost of them first, one at a time.
Texts merged_one_by_one(Texts symbols, const std::map<std::pair<std::string, std::string>, int>& ranks) {
  while (true) {
    int best = static_cast<int>(ranks.size());
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      place = i;
    }
    if (best == static_cast<int>(ranks.size())) return symbols;
    symbols[place] += symbols[place + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

// Random merges of the letters a to e, in any order, so that tokens are made in several ways.
TEST(TrainSentenceTokenizer, MatchesMergesOneByOne) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int run = 0; run < 40; ++run) {
    Texts tokens{"a", "b", "c", "d", "e"};
    json vocabulary, merges = json::array();
    std::map<std::pair<std::string, std::string>, int> ranks;
    for (const std::string& token : tokens) vocabulary[token] = vocabulary.size();
    for (unsigned count = random() % 30; count > 0; --count) {
      const std::string left = tokens[random() % tokens.size()], right = tokens[random() % tokens.size()];
      if (left.size() + right.size() > 9 || !ranks.emplace(std::pair(left, right), 0).second) continue;
      merges.push_back(json::array({left, right}));
      if (!vocabulary.contains(left + right)) vocabulary[left + right] = vocabulary.size();
      tokens.push_back(left + right);
    }
    std::shuffle(merges.begin(), merges.end(), random);
    for (std::size_t i = 0; i < merges.size(); ++i) ranks[{merges[i][0], merges[i][1]}] = static_cast<int>(i);
    vocabulary["?"] = vocabulary.size();
    const Tokenizer tokenizer =
        parsed({{"model", {{"type", "BPE"}, {"unk_token", "?"}, {"vocab", vocabulary}, {"merges", merges}}}});
    for (const std::size_t size : {1U, 20U, 64U, 65U, 300U}) {
      Texts symbols;
      std::string text;
      for (std::size_t i = 0; i < size; ++i) text += symbols.emplace_back(1, "abcde"[random() % 5]);
      std::vector<std::uint32_t> expected;
      for (const std::string& token : merged_one_by_one(symbols, ranks))
        expected.push_back(vocabulary[token]);
      EXPECT_THAT(tokenizer.encode(text), ElementsAreArray(expected)) << text << " " << merges;
    }
  }
}

TEST(TrainSentenceTokenizer, MarksSpacesAndFallsBackToBytes) {
  const Tokenizer tokenizer = parsed(small_sentence_tokenizer());
  const std::uint32_t mark = 259, t = 260, the = 266, marks = 267, en = 268;
  EXPECT_THAT(tokenizer.encode("the"), ElementsAre(the));
  EXPECT_THAT(tokenizer.encode("  the then"), ElementsAre(marks, the, the, 263));
  EXPECT_THAT(tokenizer.encode("t\xc3\xa9"), ElementsAre(mark, t, 3 + 0xc3, 3 + 0xa9));
  EXPECT_THAT(tokenizer.encode("en</s>t</s></s>"), ElementsAre(mark, en, 2, mark, t, 2, 2));
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
  for (const std::string text : {"the then", " t", "", "\n\xf0\x9f\x99\x82 the", "a\xc3\xa9"})
    EXPECT_EQ(decoded(tokenizer, tokenizer.encode(text)), text);
  EXPECT_EQ(decoded(tokenizer, {1, the, 2, mark, t}), "<s> the</s> t");
}

// A generated text may end within a character, or have bytes that are none.
TEST(TrainSentenceTokenizer, DecodesBytesThatAreNotUtf8) {
  const Tokenizer tokenizer = parsed(small_sentence_tokenizer());
  EXPECT_EQ(decoded(tokenizer, {3 + 0xc3}), "\ufffd");
  EXPECT_EQ(decoded(tokenizer, {3 + 0xe2, 3 + 0x82, 260}), "\ufffd\ufffdt");
  EXPECT_EQ(decoded(tokenizer, {3 + 0xe2, 3 + 0x82, 3 + 0xac, 260}), "\u20act");
  EXPECT_EQ(decoded(tokenizer, {260, 269}), "t\ufffd");
}

// Bytes of a character and unknown tokens may be part of merges, so that a text cannot be divided at them.
TEST(TrainSentenceTokenizer, MergesBytesAndUnknownTokens) {
  json content = small_sentence_tokenizer();
  content["model"]["vocab"]["<0xC3><0xA9>"] = 269;
  content["model"]["merges"].push_back("<0xC3> <0xA9>");
  const std::vector<std::uint32_t> tokens = parsed(content).encode(std::string(100, 't') + "\xc3\xa9");
  EXPECT_EQ(tokens.size(), 102U);
  EXPECT_EQ(tokens.back(), 269U);
  json unknown = small_sentence_tokenizer();
  unknown["model"]["byte_fallback"] = false;
  unknown["model"]["vocab"]["<unk>t"] = 269;
  unknown["model"]["merges"].push_back("<unk> t");
  EXPECT_EQ(parsed(unknown).encode(std::string(100, 'n') + "\xc3\xa9xt").back(), 269U);
}

TEST(TrainSentenceTokenizer, StripsSpacesAroundAddedTokens) {
  json content = small_sentence_tokenizer();
  content["added_tokens"][1]["lstrip"] = true;
  content["added_tokens"][2]["rstrip"] = true;
  const Tokenizer tokenizer = parsed(content);
  const std::uint32_t mark = 259, t = 260;
  EXPECT_THAT(tokenizer.encode("t \t\u3000<s> t</s>\n \u00a0 t"),
              ElementsAre(mark, t, 1, 267, t, 2, mark, t));
  EXPECT_THAT(tokenizer.encode(" <s>"), ElementsAre(1));
  EXPECT_THAT(tokenizer.encode("</s>  <s>  "), ElementsAre(2, 1, 267, mark));
}

// Normalized tokens are found with the mark of the space before them, and decoded with it.
TEST(TrainSentenceTokenizer, FindsNormalizedTokensInNormalizedText) {
  json content = small_sentence_tokenizer();
  content["added_tokens"][2]["normalized"] = true;
  const Tokenizer tokenizer = parsed(content);
  EXPECT_THAT(tokenizer.encode("</s>t</s> </s>"), ElementsAre(2, 260, 3 + '<', 3 + '/', 3 + 's', 3 + '>', 2));
  EXPECT_EQ(decoded(tokenizer, {260, 2}), "t </s>");
}

TEST(TrainSentenceTokenizer, StripsBothEndsOfTokens) {
  json content = small_sentence_tokenizer();
  content["decoder"] = {{"type", "Strip"}, {"content", "e"}, {"start", 1}, {"stop", 2}};
  EXPECT_EQ(decoded(parsed(content), {262, 265, 268}), "thn");
  content["decoder"] = nullptr;
  EXPECT_EQ(decoded(parsed(content), {262, 265, 268}), "e the en");
}

// A run of one character is a single problem of as many symbols, with several merges that compete.
TEST(TrainSentenceTokenizer, EncodesLongRun) {
  json content = small_sentence_tokenizer();
  const Tokenizer tokenizer = parsed(content);
  constexpr std::size_t count = 1'000'001;
  const std::vector<std::uint32_t> tokens = tokenizer.encode(std::string(count, ' '));
  ASSERT_EQ(tokens.size(), count / 2 + 1);  // with the mark at the start
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 267U), static_cast<std::ptrdiff_t>(count / 2 + 1));
}

}  // namespace
}  // namespace penstock::train
