// The model of a tokenizer: its tokens, and how a piece of text becomes tokens.
#pragma once

#include "train/text/byte_pairs.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace penstock::train {

//! The character that stands for a byte in the vocabulary of a byte-level model, as UTF-8: itself if it is
//! printable, else one from U+0100 on.
const std::string& byte_character(std::uint8_t byte);
//! The bytes that the characters of a token stand for; nullopt if a character stands for none.
std::optional<std::string> bytes_of_token(std::string_view token);

//! A merge of a file.
struct TokenPair {
  std::uint32_t left = 0, right = 0;
  std::uint32_t token = 0;  //!< that replaces them
};

//! The symbols with which a piece of text starts are its bytes, or its characters. A character without a
//! token becomes the tokens of its bytes or, if one of those is missing, the unknown token.
struct BpeModel {
  //! If the model is byte-level, bytes are written as characters.
  std::unordered_map<std::string, std::uint32_t> vocabulary;
  bool byte_level = false;                                //!< symbols are bytes
  std::array<std::optional<std::uint32_t>, 256> bytes{};  //!< the token of each byte
  std::optional<std::uint32_t> unknown{};
  bool fuses_unknown = false;  //!< adjacent unknown characters are one token
  bool ignore_merges = false;  //!< a piece that is a token needs no merges

  //! Sets what follows from the rest and from the merges in the order of their ranks.
  void set_merges(std::span<const TokenPair> pairs);

  BytePairs merges;
  std::unordered_map<char32_t, std::uint32_t> characters;  //!< tokens that are one character
  std::size_t longest = 0;                                 //!< bytes of the longest token
  //! Neighboring characters inside of merged tokens. No merge crosses a gap between any others, so that a
  //! long piece is divided there.
  std::unordered_set<std::uint64_t> joints;
  bool divisible = true;  //!< if only tokens of characters are merged
};

//! Encodes the pieces of a text. Pieces repeat, so that most of them are encoded once.
class PieceEncoder {
 public:
  explicit PieceEncoder(const BpeModel& model) : model_(model) {}

  //! Appends the tokens of a piece. The text must be valid UTF-8, unless the model is byte-level.
  void append(std::string_view piece, std::vector<std::uint32_t>& tokens);

 private:
  using Cache = std::unordered_map<std::string, std::vector<std::uint32_t>>;

  std::vector<std::uint32_t> encoded(std::string_view piece) const;
  void append_divided(std::string_view piece, std::vector<std::uint32_t>& tokens);
  void append_part(std::string_view part, std::vector<std::uint32_t>& symbols,
                   std::vector<std::uint32_t>& tokens);

  const BpeModel& model_;
  Cache pieces_, parts_;  //!< the tokens of complete pieces, and of parts of long ones
};

}  // namespace penstock::train
