// Matches split patterns without a regular-expression engine: each alternative is a function.
#include "train/text/split_pattern.h"

#include "base/text.h"
#include "train/text/unicode_classes.h"

#include <penstock/base/error.h>

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
// Positions are those of bytes.
class WordMatcher {
 public:
  WordMatcher(std::string_view text, const SplitPattern& pattern) : text_(text), pattern_(pattern) {}

  // Returns the end of the word.
  std::size_t end_of(std::size_t begin) const {
    const CodePoint first = code_point(text_, begin);
    if (const std::size_t end = contraction(begin); end != begin) return end;
    const std::size_t second = begin + first.length;
    const bool space = first.code == ' ';
    const bool prefix =
        pattern_.gpt2 ? space : !is_newline(first.code) && !is_letter(first.code) && !is_number(first.code);
    const std::size_t word = prefix ? second : begin;
    if (const std::size_t end = run(word, is_letter); end != word) return end;
    const std::size_t number = pattern_.gpt2 && space ? second : begin;
    if (const std::size_t end = run(number, is_number, pattern_.digits); end != number) return end;
    const std::size_t other = space ? second : begin;
    if (const std::size_t end = run(other, is_other); end != other)
      return pattern_.gpt2 ? end : run(end, is_newline);
    return spaces(begin);
  }

 private:
  // The end of the characters of a class, at most `limit` of them; 0: no limit.
  template <class Class>
  std::size_t run(std::size_t at, const Class& is_member, std::size_t limit = 0) const {
    for (std::size_t count = 0; at < text_.size() && (limit == 0 || count < limit); ++count) {
      const CodePoint point = code_point(text_, at);
      if (!is_member(point.code)) break;
      at += point.length;
    }
    return at;
  }

  std::size_t contraction(std::size_t begin) const {
    if (text_[begin] != '\'') return begin;
    for (const std::string_view suffix : {"s", "t", "re", "ve", "m", "ll", "d"}) {
      std::size_t at = begin + 1, matched = 0;
      while (matched < suffix.size() && at < text_.size()) {
        const CodePoint point = code_point(text_, at);
        if ((pattern_.gpt2 ? point.code : lower(point.code)) != static_cast<char32_t>(suffix[matched])) break;
        at += point.length;
        ++matched;
      }
      if (matched == suffix.size()) return at;
    }
    return begin;
  }

  // White space: up to its last line break if the pattern has such an alternative; else all of it at the end
  // of the text, and otherwise all but the last character, with which the next word may start.
  std::size_t spaces(std::size_t begin) const {
    std::size_t end = begin, last = begin, line_end = begin;
    while (end < text_.size()) {
      const CodePoint point = code_point(text_, end);
      if (!is_space(point.code)) break;
      last = end;
      end += point.length;
      if (is_newline(point.code)) line_end = end;
    }
    if (!pattern_.gpt2 && line_end != begin) return line_end;
    return end == text_.size() || last == begin ? end : last;
  }

  std::string_view text_;
  SplitPattern pattern_;
};

}  // namespace

CodePoint code_point(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  const std::size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  char32_t code = first & (0x7fU >> length);
  bool valid = length > 0 && at + length <= text.size();
  for (std::size_t i = 1; valid && i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[at + i]);
    valid = (next & 0xc0U) == 0x80;
    code = code << 6 | (next & 0x3fU);
  }
  // Overlong encodings, surrogates and numbers beyond Unicode are not valid.
  valid = valid && !(length == 3 && code < 0x800) && !(length == 4 && (code < 0x10000 || code > 0x10ffff)) &&
          !(code >= 0xd800 && code < 0xe000);
  if (!valid)
    throw UsageError(str_cat("the text is not valid UTF-8 at byte ", at), {},
                     "convert it to UTF-8, or use the tokenizer `bytes`, which takes any bytes");
  return {code, length};
}

SplitPattern gpt2_pattern() {
  return kPatterns[0].pattern;
}

std::optional<SplitPattern> split_pattern(std::string_view expression) {
  for (const KnownPattern& known : kPatterns)
    if (known.expression == expression) return known.pattern;
  return std::nullopt;
}

void check_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) at += code_point(text, at).length;
}

std::size_t end_of_word(std::string_view text, std::size_t begin, const SplitPattern& pattern) {
  return WordMatcher(text, pattern).end_of(begin);
}

}  // namespace penstock::train
