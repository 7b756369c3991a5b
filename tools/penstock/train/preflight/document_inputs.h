// Documents in a stream of tokens: the token that separates them, and the inputs of an exported model that
// describe them.
#pragma once

#include "config/train_settings.h"

#include <penstock/graph/ir.h>
#include <penstock/train/tokens.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tool {

//! Inputs of exported language models, by name.
constexpr const char* kPositionIds = "position_ids";
constexpr const char* kAttentionMask = "attention_mask";

//! The token of `--document-separator`; nullopt if there is none. `name` is a number, or a text that
//! `tokenizer` encodes as one token. Throws UsageError for anything else.
std::optional<std::int64_t> separator_token(const std::string& name, const std::string& tokenizer);

//! How documents are told apart for this run, without tensors; nullopt if they are not. Throws UsageError if
//! the separator is not in the vocabulary.
std::optional<train::DocumentOptions> document_options(const TrainSettings& request);

//! The inputs of a language model.
struct LanguageInputs {
  std::vector<const graph::Value*> others;                 //!< those that do not describe documents
  std::map<std::string, train::DocumentColumn> documents;  //!< by name
};
//! Finds the inputs that are not constants. With `documents`, `position_ids` and `attention_mask` describe
//! documents; throws UsageError if one of them has a layout that cannot, or if there is none of them.
LanguageInputs language_inputs(const graph::Graph& graph, bool documents);

}  // namespace penstock::tool
