// How a tokenizer joins tokens to a text.
#pragma once

#include "train/text/normalizer.h"

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

namespace penstock::train {

//! Characters of a byte-level vocabulary become bytes, and all tokens one.
struct DecodeBytes {};
//! Runs of tokens such as `<0xE2>` become text or, if they are not valid UTF-8, one U+FFFD per token.
struct DecodeByteTokens {};
//! Marks become spaces; those of the first token are removed if `drops_first`.
struct DecodeMarks {
  std::string mark;
  bool drops_first = true;
};
//! All tokens become one.
struct Join {};
//! Removes up to this many of a character at the start and the end of each token.
struct Strip {
  std::string character;
  std::size_t left = 0, right = 0;
};
using DecoderStep = std::variant<DecodeBytes, DecodeByteTokens, DecodeMarks, Join, Replace, Strip>;

//! Applies the steps to a list of tokens, and joins what remains.
std::string decoded(std::vector<std::string> tokens, const std::vector<DecoderStep>& steps);

}  // namespace penstock::train
