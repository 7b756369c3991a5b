// Adds adapters to the linear layers and embeddings of a GPT.
#include "train/lora/gpt_adapters.h"

#include "train/lora/initial_values.h"
#include "train/lora/layer_patterns.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <utility>

namespace penstock::train {
namespace {

using models::AdaptableEmbedding;
using models::AdaptableLinearImpl;

constexpr const char* kTokens = "token";

// The embeddings that can have adapters, by path. A tied table is also the head.
std::vector<std::pair<std::string, AdaptableEmbedding>> embeddings_of(const models::GptImpl& model) {
  std::vector<std::pair<std::string, AdaptableEmbedding>> embeddings;
  if (!model.token.is_empty() && !model.options().tied) embeddings.emplace_back(kTokens, model.token);
  if (!model.position.is_empty()) embeddings.emplace_back("position", model.position);
  return embeddings;
}

AdaptedLayer linear_layer(const std::string& path) {
  return {.module = path, .weight = path + ".weight"};
}

AdaptedLayer embedding_layer(const std::string& path) {
  return {.module = path, .weight = path + ".weight", .transposed = true, .embedding = true};
}

void refuse_tied(const models::GptImpl& model, const LoraOptions& options) {
  const std::vector<std::string>& patterns = options.patterns;
  if (!model.options().tied || std::find(patterns.begin(), patterns.end(), kTokens) == patterns.end()) return;
  throw UsageError("LoRA cannot adapt 'token.weight': it is also the head of the GPT", {},
                   "leave its module out of the patterns, or train a GPT that is not tied");
}

}  // namespace

void add_adapters(models::GptImpl& model, const LoraOptions& options) {
  for (at::Tensor& parameter : model.parameters()) parameter.set_requires_grad(false);
  for (const auto& item : model.named_modules("", false)) {
    auto* const layer = dynamic_cast<AdaptableLinearImpl*>(item.value().get());
    if (layer == nullptr || !selects_layer(options, item.key())) continue;
    layer->add_adapter(options.rank, options.scale(), options.dropout);
    initialize_adapter(layer->lora_A->weight, linear_layer(item.key()), options.seed);
  }
  for (auto& [path, embedding] : embeddings_of(model)) {
    if (!selects_embedding(options, path)) continue;
    embedding->add_adapter(options.rank, options.scale());
    initialize_adapter(embedding->lora_embedding_B->weight, embedding_layer(path), options.seed);
  }
}

Lora selected_layers(const models::GptImpl& model, const LoraOptions& options) {
  check(options);
  refuse_tied(model, options);
  Lora lora{options};
  std::vector<std::string> linear, embeddings;
  for (const auto& [path, embedding] : embeddings_of(model)) {
    embeddings.push_back(path);
    if (selects_embedding(options, path)) lora.layers.push_back(embedding_layer(path));
  }
  for (const auto& item : model.named_modules("", false)) {
    if (dynamic_cast<const AdaptableLinearImpl*>(item.value().get()) == nullptr) continue;
    linear.push_back(item.key());
    if (selects_layer(options, item.key())) lora.layers.push_back(linear_layer(item.key()));
  }
  check_patterns(options, linear, embeddings);
  return lora;
}

}  // namespace penstock::train
