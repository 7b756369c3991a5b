// Reads the steps of a tokenizer file: normalizer, pre-tokenizer and decoder. Also helpers for its fields.
#pragma once

#include "base/io/json_reader.h"
#include "train/text/normalizer.h"
#include "train/text/pre_tokenizer.h"
#include "train/text/token_decoder.h"

#include <string>
#include <string_view>
#include <vector>

namespace penstock::train {

//! Throws a UsageError: the file needs a feature that is not supported.
[[noreturn]] void refuse_feature(const std::string& where, const std::string& what);
//! False if the field is missing or null.
bool flag_of(const JsonValue& object, std::string_view name, const std::string& where);
//! Empty if the field is missing or null.
std::string text_of(const JsonValue& object, std::string_view name, const std::string& where);

//! Lists of steps may be nested.
std::vector<NormalizerStep> read_normalizer(const JsonValue& normalizer, const std::string& where);
std::vector<SplitStep> read_pre_tokenizer(const JsonValue& pre_tokenizer, const std::string& where);
std::vector<DecoderStep> read_decoder(const JsonValue& decoder, const std::string& where);

}  // namespace penstock::train
