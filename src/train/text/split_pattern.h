// The split patterns of byte-level tokenizers: they divide a text into the words to which merges apply.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace penstock::train {

//! What distinguishes the known patterns.
struct SplitPattern {
  bool gpt2 = true;        //!< words and numbers may start with a space; else words with any punctuation
  std::size_t digits = 0;  //!< maximum digits of a number; 0: no limit
};

//! The pattern that byte-level tokenizers have by default, that of GPT-2.
SplitPattern gpt2_pattern();
//! The pattern with this regular expression; nullopt if it is not one of the known ones.
std::optional<SplitPattern> split_pattern(std::string_view expression);

//! A code point of a text and the offset of its first byte.
struct CodePoint {
  char32_t code = 0;
  std::size_t offset = 0;
};
//! Decodes UTF-8. Throws a UsageError with the offset if the text is not valid.
std::vector<CodePoint> code_points(std::string_view text);

//! Divides the text into words, which cover it.
std::vector<std::string_view> split_words(std::string_view text, const SplitPattern& pattern);

}  // namespace penstock::train
