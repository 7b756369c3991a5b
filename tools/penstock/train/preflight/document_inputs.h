// Documents in a stream of tokens: the token that separates them, and the inputs of an exported model that
// describe them or have labels.
#pragma once

#include "config/train_settings.h"
#include "train/preflight/token_data.h"

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
constexpr const char* kLabelInput = "labels";

//! The token of `--document-separator`; nullopt if there is none. `name` is a number, or a text that `encode`
//! makes one token. Throws UsageError for anything else.
std::optional<std::int64_t> separator_token(const std::string& name, const TextEncoder& encode);

//! How documents are told apart for this run, without tensors; nullopt if they are not. Throws UsageError if
//! the separator is not in the vocabulary, which is that of the request by default.
std::optional<train::DocumentOptions> document_options(const TrainSettings& request,
                                                       std::optional<std::int64_t> vocabulary = std::nullopt);

//! The inputs of a language model.
struct LanguageInputs {
  std::vector<const graph::Value*> others;                 //!< those that the stream does not describe
  std::map<std::string, train::DocumentColumn> documents;  //!< positions and masks, by name
};
//! Finds the inputs that are not constants, except that of the labels. `position_ids` and `attention_mask`
//! describe the documents if `documents` says that there are separators, else sequences that are one document
//! each. Throws UsageError if one of these inputs, or that of the labels, has a layout that a stream cannot
//! describe, or if there are separators but no input for them.
LanguageInputs language_inputs(const graph::Graph& graph, bool documents,
                               const std::optional<std::string>& labels);

}  // namespace penstock::tool
