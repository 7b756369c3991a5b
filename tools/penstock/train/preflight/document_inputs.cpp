// Finds out how documents are told apart.
#include "train/preflight/document_inputs.h"

#include "base/text.h"
#include "train/preflight/model_checks.h"
#include "train/preflight/token_data.h"

#include <penstock/base/error.h>
#include <penstock/value/tensor_meta.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace penstock::tool {
namespace {

std::optional<std::int64_t> token_number(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && number >= 0;
  return is_number ? std::optional(number) : std::nullopt;
}

std::string text_of(const graph::ValueMeta& meta) {
  std::vector<std::string> sizes;
  for (const graph::Dim& dim : meta.sizes)
    sizes.push_back(dim.expression.empty() ? std::to_string(dim.size) : dim.expression);
  return value::dtype_name(meta.dtype) + "[" + join(sizes, ", ") + "]";
}

[[noreturn]] void refuse_input(const graph::Value& input, bool documents, const std::string& needed) {
  throw UsageError(str_cat("the input ", quote(input.name),
                           input.meta ? " is " + text_of(*input.meta) + ", which" : " has no metadata, so it",
                           documents ? " cannot describe documents" : " a stream of tokens cannot describe"),
                   {},
                   "export the model with " + needed +
                       (documents ? ", or leave out --document-separator"
                                  : ", or store all inputs in a .safetensors file"));
}

bool is_batch_of_integers(const graph::Value& input) {
  return input.meta && input.meta->sizes.size() == 2 && is_integer(input.meta->dtype);
}

train::DocumentColumn position_column(const graph::Value& input, bool documents) {
  if (!is_batch_of_integers(input)) refuse_input(input, documents, "integers of shape [batch, length]");
  return {train::DocumentTensor::Positions};
}

// A mask of shape [batch, length] only tells tokens from padding.
train::DocumentColumn mask_column(const graph::Value& input, bool documents) {
  const std::string needed = str_cat(
      "a mask of bool or floating-point numbers, of shape [batch, 1, length, length] or [batch, length, "
      "length]",
      documents ? "" : ", or one of shape [batch, length]");
  if (!input.meta) refuse_input(input, documents, needed);
  const std::vector<graph::Dim>& sizes = input.meta->sizes;
  const at::ScalarType dtype = input.meta->dtype;
  if (sizes.size() == 2 && !documents) return {train::DocumentTensor::Padding, dtype};
  const bool has_head_dim = sizes.size() == 4;
  if ((sizes.size() != 3 && !has_head_dim) || (dtype != at::kBool && !at::isFloatingType(dtype)))
    refuse_input(input, documents, needed);
  if (has_head_dim && (sizes[1].size != 1 || !sizes[1].expression.empty()))
    refuse_input(input, documents, needed);
  return {train::DocumentTensor::Mask, dtype, has_head_dim};
}

}  // namespace

std::optional<std::int64_t> separator_token(const std::string& name, const TextEncoder& encode) {
  if (name.empty()) return std::nullopt;
  if (const auto number = token_number(name)) return number;
  if (!encode)
    throw UsageError("--document-separator " + quote(name) + " is not a token", {},
                     "give its number, or name the tokenizer with --tokenizer FILE.json");
  const std::vector<std::int64_t> tokens = encode(name);
  if (tokens.size() != 1)
    throw UsageError(str_cat("--document-separator ", quote(name), " is ", tokens.size(),
                             " tokens of the tokenizer, not one"),
                     {}, "give a text that is one token, such as <|endoftext|>, or the number of a token");
  return tokens[0];
}

std::optional<train::DocumentOptions> document_options(const TrainSettings& request,
                                                       std::optional<std::int64_t> vocabulary) {
  if (request.document_separator.empty()) return std::nullopt;
  const auto separator = separator_token(request.document_separator, text_encoder(request));
  constexpr std::int64_t most = std::numeric_limits<std::uint32_t>::max();
  const std::int64_t size = vocabulary.value_or(request.vocabulary.value_or(most + 1));
  if (*separator >= size)
    throw UsageError(
        str_cat("--document-separator ", *separator, " is not in the vocabulary of ", size, " tokens"), {},
        "give the token that ends a document in the data");
  return train::DocumentOptions{.separator = *separator, .boundary_targets = !request.no_boundary_targets};
}

LanguageInputs language_inputs(const graph::Graph& graph, bool documents,
                               const std::optional<std::string>& labels) {
  LanguageInputs inputs;
  for (const graph::GraphInput& input : graph.inputs) {
    if (input.constant) continue;
    const graph::Value& value = graph.value(input.value);
    if (value.name == labels) {
      if (!is_batch_of_integers(value)) refuse_input(value, false, "integers of shape [batch, length]");
    } else if (value.name == kPositionIds) {
      inputs.documents[value.name] = position_column(value, documents);
    } else if (value.name == kAttentionMask) {
      inputs.documents[value.name] = mask_column(value, documents);
    } else {
      inputs.others.push_back(&value);
    }
  }
  if (documents && inputs.documents.empty())
    throw UsageError(
        "--document-separator needs a model that takes position_ids or attention_mask, but "
        "this one has no such input",
        {}, "export the model with one of them or both, or leave out --document-separator");
  return inputs;
}

}  // namespace penstock::tool
