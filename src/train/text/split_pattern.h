// The split patterns of byte-level tokenizers: they divide a text into the words to which merges apply.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

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

//! A character of a text.
struct CodePoint {
  char32_t code = 0;
  std::size_t length = 0;  //!< in bytes
};

//! Decodes the character at byte `at`. Throws like `check_utf8`.
CodePoint code_point(std::string_view text, std::size_t at);

//! Throws a UsageError with the offset if the text is not valid UTF-8.
void check_utf8(std::string_view text);

//! Returns the end of the word that starts at `begin`. Words cover the text: the next one starts there.
//! Decodes only this word and the character after it, so that a long text takes no memory. Requires begin <
//! text.size(). Throws like `check_utf8`.
std::size_t end_of_word(std::string_view text, std::size_t begin, const SplitPattern& pattern);

}  // namespace penstock::train
