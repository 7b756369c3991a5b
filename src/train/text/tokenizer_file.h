// The content of a tokenizer file, in the format of Hugging Face's `tokenizer.json`.
#pragma once

#include "train/text/added_tokens.h"
#include "train/text/bpe_model.h"
#include "train/text/normalizer.h"
#include "train/text/pre_tokenizer.h"
#include "train/text/token_decoder.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::train {

//! Texts are encoded in the order of the members: added tokens are found first, those that are normalized in
//! the normalized text.
struct TokenizerFile {
  AddedTokens added;
  std::vector<NormalizerStep> normalizer;
  AddedTokens normalized_added;
  std::vector<SplitStep> splits;
  BpeModel model;
  std::optional<std::vector<DecoderStep>> decoder;  //!< nullopt: tokens are joined by spaces

  std::unordered_map<std::uint32_t, std::string> tokens{};     //!< what is decoded, by id
  std::unordered_map<std::string, std::uint32_t> added_ids{};  //!< by the content in the file
};

//! Throws like Tokenizer::parse.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& where);

}  // namespace penstock::train
