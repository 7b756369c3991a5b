// The content of a tokenizer file, in the format of Hugging Face's `tokenizer.json`.
#pragma once

#include "train/text/byte_pairs.h"
#include "train/text/split_pattern.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::train {

//! A token that is found in the text before anything else.
struct AddedToken {
  std::string content;
  std::uint32_t id = 0;
  bool normalized = false;  //!< is found after the others
};

struct TokenizerFile {
  std::unordered_map<std::string, std::uint32_t> vocabulary;  //!< with bytes written as characters
  std::array<std::uint32_t, 256> bytes{};                     //!< the token of each byte
  BytePairs merges;
  bool ignore_merges = false;  //!< a word that is a token needs no merges
  SplitPattern pattern;
  bool composes = false;  //!< the text is brought into Unicode's normalization form C first
  std::vector<AddedToken> added;
};

//! The character that stands for a byte in the vocabulary, as UTF-8: itself if it is printable, else one from
//! U+0100 on.
const std::string& byte_character(std::uint8_t byte);
//! The bytes that the characters of a token stand for; nullopt if a character stands for none.
std::optional<std::string> bytes_of_token(std::string_view token);

//! Throws like Tokenizer::parse.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& where);

}  // namespace penstock::train
