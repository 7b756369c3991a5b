// Matches split patterns without a regular-expression engine: each alternative is a function.
#include "train/text/split_pattern.h"

#include "base/text.h"
#include "train/text/unicode_classes.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <array>

namespace penstock::train {
namespace {

struct KnownPattern {
  std::string_view expression;
  SplitPattern pattern;
};

constexpr std::array<KnownPattern, 3> kPatterns{
    {{R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", {true, 0}},
     // Llama 3
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
      R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      {false, 3}},
     // Qwen 2
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
      R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      {false, 1}}}};

bool is_newline(char32_t code) {
  return code == '\r' || code == '\n';
}
bool is_other(char32_t code) {
  return !is_space(code) && !is_letter(code) && !is_number(code);
}

char32_t lower(char32_t code) {
  if (code == 0x17f) return 's';  // the long s is a lower-case s
  return code >= 'A' && code <= 'Z' ? code - 'A' + 'a' : code;
}

// Finds the word that starts at a position. The alternatives are tried in the order of the expression.
class WordMatcher {
 public:
  WordMatcher(const std::vector<CodePoint>& text, const SplitPattern& pattern)
      : text_(text), pattern_(pattern) {}

  // Returns the end of the word.
  std::size_t end_of(std::size_t begin) const {
    if (const std::size_t end = contraction(begin); end != begin) return end;
    const char32_t first = text_[begin].code;
    const bool space = first == ' ';
    const bool prefix = pattern_.gpt2 ? space : !is_newline(first) && !is_letter(first) && !is_number(first);
    const std::size_t word = begin + (prefix ? 1 : 0);
    if (const std::size_t end = run(word, is_letter); end != word) return end;
    const std::size_t number = begin + (pattern_.gpt2 && space ? 1 : 0);
    if (const std::size_t end = run(number, is_number); end != number)
      return pattern_.digits == 0 ? end : std::min(end, number + pattern_.digits);
    const std::size_t other = begin + (space ? 1 : 0);
    if (const std::size_t end = run(other, is_other); end != other)
      return pattern_.gpt2 ? end : run(end, is_newline);
    return spaces(begin);
  }

 private:
  template <class Class>
  std::size_t run(std::size_t at, const Class& is_member) const {
    while (at < text_.size() && is_member(text_[at].code)) ++at;
    return at;
  }

  std::size_t contraction(std::size_t begin) const {
    if (text_[begin].code != '\'') return begin;
    for (const std::string_view suffix : {"s", "t", "re", "ve", "m", "ll", "d"}) {
      std::size_t matched = 0;
      while (matched < suffix.size() && begin + 1 + matched < text_.size()) {
        const char32_t code = text_[begin + 1 + matched].code;
        if ((pattern_.gpt2 ? code : lower(code)) != static_cast<char32_t>(suffix[matched])) break;
        ++matched;
      }
      if (matched == suffix.size()) return begin + 1 + matched;
    }
    return begin;
  }

  // White space: up to its last line break if the pattern has such an alternative; else all of it at the end
  // of the text, and otherwise all but the last character, with which the next word may start.
  std::size_t spaces(std::size_t begin) const {
    const std::size_t end = run(begin, is_space);
    if (!pattern_.gpt2)
      for (std::size_t at = end; at > begin; --at)
        if (is_newline(text_[at - 1].code)) return at;
    return end == text_.size() || end == begin + 1 ? end : end - 1;
  }

  const std::vector<CodePoint>& text_;
  SplitPattern pattern_;
};

}  // namespace

SplitPattern gpt2_pattern() {
  return kPatterns[0].pattern;
}

std::optional<SplitPattern> split_pattern(std::string_view expression) {
  for (const KnownPattern& known : kPatterns)
    if (known.expression == expression) return known.pattern;
  return std::nullopt;
}

std::vector<CodePoint> code_points(std::string_view text) {
  std::vector<CodePoint> codes;
  codes.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const std::size_t length = first < 0x80   ? 1
                               : first < 0xc2 ? 0
                               : first < 0xe0 ? 2
                               : first < 0xf0 ? 3
                               : first < 0xf5 ? 4
                                              : 0;
    char32_t code = length < 2 ? first : first & (0x7fU >> length);
    bool valid = length > 0 && at + length <= text.size();
    for (std::size_t i = 1; valid && i < length; ++i) {
      const auto next = static_cast<unsigned char>(text[at + i]);
      valid = (next & 0xc0U) == 0x80;
      code = code << 6 | (next & 0x3fU);
    }
    // Overlong encodings, surrogates and numbers beyond Unicode are not valid.
    valid = valid && !(length == 3 && code < 0x800) &&
            !(length == 4 && (code < 0x10000 || code > 0x10ffff)) && !(code >= 0xd800 && code < 0xe000);
    if (!valid)
      throw UsageError(str_cat("the text is not valid UTF-8 at byte ", at), {},
                       "convert it to UTF-8, or use the tokenizer `bytes`, which takes any bytes");
    codes.push_back({code, at});
    at += length;
  }
  return codes;
}

std::vector<std::string_view> split_words(std::string_view text, const SplitPattern& pattern) {
  const std::vector<CodePoint> codes = code_points(text);
  const WordMatcher matcher(codes, pattern);
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin < codes.size();) {
    const std::size_t end = matcher.end_of(begin);
    const std::size_t last = end < codes.size() ? codes[end].offset : text.size();
    words.push_back(text.substr(codes[begin].offset, last - codes[begin].offset));
    begin = end;
  }
  return words;
}

}  // namespace penstock::train
