// Composes characters (Unicode Standard Annex 15), segment by segment.
#include "train/text/normal_form.h"

#include "train/text/split_pattern.h"
#include "train/text/unicode_compositions.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>
#include <vector>

namespace penstock::train {
namespace {

struct Decomposition {
  char32_t first = 0, second = 0;  // `second` is 0 if there is only one part
};

std::uint64_t pair_key(char32_t first, char32_t second) {
  return std::uint64_t{first} << 32 | second;
}

char32_t hexadecimal(std::string_view text) {
  std::uint32_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return number;
}

// Divides a text at the first `mark`; the second part is empty if there is none.
std::pair<std::string_view, std::string_view> halves(std::string_view text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + 1)};
}

template <class Use>
void for_each_item(std::string_view table, const Use& use) {
  for (std::string_view rest = table; !rest.empty();) {
    const auto [item, others] = halves(rest, ' ');
    const auto [codes, content] = halves(item, '=');
    use(codes, content);
    rest = others;
  }
}

struct CompositionTables {
  std::unordered_map<char32_t, Decomposition> decompositions;
  std::unordered_map<std::uint64_t, char32_t> compositions;
  std::unordered_map<char32_t, int> classes;

  CompositionTables() {
    for_each_item(kDecompositions, [&](std::string_view code, std::string_view content) {
      const bool composes = !content.ends_with('!');
      const auto [first, second] = halves(content.substr(0, content.find('!')), ',');
      const Decomposition parts{hexadecimal(first), hexadecimal(second)};
      decompositions[hexadecimal(code)] = parts;
      if (composes && parts.second != 0)
        compositions[pair_key(parts.first, parts.second)] = hexadecimal(code);
    });
    for_each_item(kCombiningClasses, [&](std::string_view codes, std::string_view number) {
      const auto [first, last] = halves(codes, '-');
      const char32_t end = hexadecimal(last.empty() ? first : last);
      for (char32_t code = hexadecimal(first); code <= end; ++code)
        classes[code] = static_cast<int>(hexadecimal(number));
    });
  }

  int class_of(char32_t code) const {
    const auto found = classes.find(code);
    return found == classes.end() ? 0 : found->second;
  }
};

const CompositionTables& tables() {
  static const CompositionTables all;
  return all;
}

// The syllables of Hangul: (leading * 21 + vowel) * 28 + trailing, from U+AC00 on.
constexpr char32_t kSyllables = 0xac00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11a7;
constexpr char32_t kLeadingCount = 19, kVowelCount = 21, kTrailingCount = 28;
constexpr char32_t kSyllableCount = kLeadingCount * kVowelCount * kTrailingCount;

void append_decomposed(std::vector<char32_t>& codes, char32_t code) {
  if (const char32_t syllable = code - kSyllables; code >= kSyllables && syllable < kSyllableCount) {
    codes.push_back(kLeading + syllable / kTrailingCount / kVowelCount);
    codes.push_back(kVowel + syllable / kTrailingCount % kVowelCount);
    if (syllable % kTrailingCount > 0) codes.push_back(kTrailing + syllable % kTrailingCount);
    return;
  }
  const auto found = tables().decompositions.find(code);
  if (found == tables().decompositions.end()) {
    codes.push_back(code);
    return;
  }
  append_decomposed(codes, found->second.first);
  if (found->second.second != 0) append_decomposed(codes, found->second.second);
}

// The character that two others make; 0 if none.
char32_t composed(char32_t first, char32_t second) {
  const char32_t leading = first - kLeading, vowel = second - kVowel;
  if (first >= kLeading && leading < kLeadingCount && second >= kVowel && vowel < kVowelCount)
    return kSyllables + (leading * kVowelCount + vowel) * kTrailingCount;
  const char32_t syllable = first - kSyllables, trailing = second - kTrailing;
  if (first >= kSyllables && syllable < kSyllableCount && syllable % kTrailingCount == 0 &&
      second > kTrailing && trailing < kTrailingCount)
    return first + trailing;
  const auto found = tables().compositions.find(pair_key(first, second));
  return found == tables().compositions.end() ? 0 : found->second;
}

// Sorts each run of marks by their classes.
void sort_marks(std::vector<char32_t>& codes) {
  const auto is_mark = [](char32_t code) { return tables().class_of(code) != 0; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    begin = std::find_if(begin, codes.end(), is_mark);
    const auto end = std::find_if_not(begin, codes.end(), is_mark);
    std::stable_sort(begin, end,
                     [](char32_t a, char32_t b) { return tables().class_of(a) < tables().class_of(b); });
    begin = end;
  }
}

// Composes each character with the starter before it, unless a character of the same or a higher class is
// between them.
void compose(std::vector<char32_t>& codes) {
  constexpr std::size_t none = -1;
  std::size_t starter = none, size = 0;
  int last_class = 0;  // of the last character after the starter
  for (const char32_t code : codes) {
    const int number = tables().class_of(code);
    const bool adjacent = starter != none && size == starter + 1;
    if (starter != none && (adjacent || last_class < number)) {
      if (const char32_t both = composed(codes[starter], code); both != 0) {
        codes[starter] = both;
        continue;
      }
    }
    if (number == 0) starter = size;
    last_class = number;
    codes[size++] = code;
  }
  codes.resize(size);
}

void append_utf8(std::string& text, char32_t code) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80U | (code >> shift & 0x3fU)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xc0U | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xe0U | code >> 12);
    tail(6), tail(0);
  } else {
    text += static_cast<char>(0xf0U | code >> 18);
    tail(12), tail(6), tail(0);
  }
}

void append_composed(std::string& result, std::vector<char32_t>& segment) {
  if (segment.size() > 1) {
    sort_marks(segment);
    compose(segment);
  }
  for (const char32_t code : segment) append_utf8(result, code);
  segment.clear();
}

}  // namespace

bool precedes_marks(std::string_view text) {
  // U+0300 and all characters after it start with a byte of at least 0xcc.
  return std::none_of(text.begin(), text.end(),
                      [](char byte) { return static_cast<unsigned char>(byte) >= 0xcc; });
}

std::string composed_form(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  std::vector<char32_t> segment;  // from a character that begins a segment on
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point(text, at);
    at += point.length;
    // No character below U+0300 is a mark, or the second part of another one.
    if (point.code < 0x300) append_composed(result, segment);
    append_decomposed(segment, point.code);
  }
  append_composed(result, segment);
  return result;
}

}  // namespace penstock::train
