// The layers of the built-in GPT.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/models/gpt.h>
#include <penstock/runtime/module_call.h>

#include <torch/torch.h>

#include <cmath>

namespace penstock::models {
namespace {

namespace nn = torch::nn;

AdaptableLinear linear(std::int64_t from, std::int64_t to, const GptOptions& options) {
  return AdaptableLinear(nn::LinearOptions(from, to).bias(options.bias));
}

nn::LayerNorm layer_norm(const GptOptions& options) {
  return nn::LayerNorm(nn::LayerNormOptions({options.width}));
}

void check(const GptOptions& options, const GptPart& part) {
  if (options.vocabulary < 1 || options.context < 1 || options.layers < 0 || options.heads < 1 ||
      options.width < 1 || options.hidden.value_or(1) < 1)
    throw UsageError("the sizes of a GPT must be positive", {},
                     "use 1 or more layers, heads, width and context");
  if (options.width % options.heads != 0)
    throw UsageError(
        str_cat("a width of ", options.width, " cannot be divided into ", options.heads, " heads"), {},
        "make the width a multiple of the number of heads");
  if (options.positions == PositionKind::Rotary && options.head_width() % 2 != 0)
    throw UsageError(str_cat("rotary positions need an even head width, not ", options.head_width()), {},
                     "use fewer heads, or learned positions");
  if (!(options.dropout >= 0 && options.dropout < 1))
    throw UsageError("dropout must be at least 0 and below 1", {}, "use a fraction such as 0.1");
  if (part.first_block < 0 || part.first_block > part.end_block || part.end_block > options.layers)
    throw UsageError(str_cat("a GPT of ", options.layers, " layers has no blocks ", part.first_block, " to ",
                             part.end_block));
}

// The attention mask for a cache with `past` tokens: query i may attend to keys up to past + i.
at::Tensor causal_mask(std::int64_t queries, std::int64_t past, at::Device device) {
  return torch::ones({queries, past + queries}, torch::dtype(torch::kBool).device(device)).tril(past);
}

}  // namespace

std::int64_t GptOptions::hidden_width() const {
  if (hidden) return *hidden;
  return feed_forward == FeedForwardKind::Gelu ? 4 * width : (8 * width / 3 + 7) / 8 * 8;
}

AttentionImpl::AttentionImpl(const GptOptions& options)
    : head_width_(options.head_width()), dropout_(options.dropout) {
  query = register_module("query", linear(options.width, options.width, options));
  key = register_module("key", linear(options.width, options.width, options));
  value = register_module("value", linear(options.width, options.width, options));
  out = register_module("out", linear(options.width, options.width, options));
  if (options.positions != PositionKind::Rotary) return;
  // The pair (i, i + half) of a head is rotated by position * 10000^(-i/half).
  const auto half = head_width_ / 2;
  const auto speed = torch::pow(10000.0, -torch::arange(half, torch::kDouble) / half);
  const auto angle = torch::outer(torch::arange(options.context, torch::kDouble), speed);
  cos_ = torch::cat({angle.cos(), angle.cos()}, 1).to(torch::kFloat);
  sin_ = torch::cat({angle.sin(), angle.sin()}, 1).to(torch::kFloat);
}

void AttentionImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  nn::Module::to(device, dtype, non_blocking);
  move_tables(device);
}

void AttentionImpl::to(torch::Dtype dtype, bool non_blocking) {
  nn::Module::to(dtype, non_blocking);
}

void AttentionImpl::to(torch::Device device, bool non_blocking) {
  nn::Module::to(device, non_blocking);
  move_tables(device);
}

// Tensors on the meta device would lose their values.
void AttentionImpl::move_tables(torch::Device device) {
  if (!cos_.defined() || device.is_meta()) return;
  cos_ = cos_.to(device);
  sin_ = sin_.to(device);
}

at::Tensor AttentionImpl::rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) const {
  const auto half = head_width_ / 2;
  const auto turned = torch::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
  return (x * cos + turned * sin).to(x.scalar_type());
}

at::Tensor AttentionImpl::forward(const at::Tensor& x, std::int64_t past, KeyValueCache::Layer* cache,
                                  const std::shared_ptr<const PackedDocuments>& documents) {
  const auto batch = x.size(0), time = x.size(1);
  const auto by_heads = [&](const at::Tensor& projected) {
    return projected.view({batch, time, -1, head_width_}).transpose(1, 2);
  };
  at::Tensor q = by_heads(query(x)), k = by_heads(key(x)), v = by_heads(value(x));
  if (cos_.defined()) {
    const auto of_tokens = [&](const at::Tensor& table) {  // [time, head_width], or [batch, 1, …]
      return documents == nullptr ? table.narrow(0, past, time)
                                  : torch::embedding(table, documents->positions).unsqueeze(1);
    };
    const auto cos = of_tokens(cos_), sin = of_tokens(sin_);
    q = rotate(q, cos, sin);
    k = rotate(k, cos, sin);
  }
  if (cache != nullptr) {
    if (cache->keys.defined()) {
      k = torch::cat({cache->keys, k}, 2);
      v = torch::cat({cache->values, v}, 2);
    }
    cache->keys = k;
    cache->values = v;
  }
  std::optional<at::Tensor> mask;
  if (past > 0 && time > 1) mask = causal_mask(time, past, x.device());
  if (documents != nullptr) mask = documents->mask;
  const bool causal = past == 0 && !mask;
  const auto mixed =
      torch::scaled_dot_product_attention(q, k, v, mask, is_training() ? dropout_ : 0.0, causal);
  return out(mixed.transpose(1, 2).reshape({batch, time, -1}));
}

FeedForwardImpl::FeedForwardImpl(const GptOptions& options) {
  if (options.feed_forward == FeedForwardKind::SwiGlu)
    gate = register_module("gate", linear(options.width, options.hidden_width(), options));
  up = register_module("up", linear(options.width, options.hidden_width(), options));
  down = register_module("down", linear(options.hidden_width(), options.width, options));
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x) {
  return down(gate.is_empty() ? torch::gelu(up(x)) : torch::silu(gate(x)) * up(x));
}

BlockImpl::BlockImpl(const GptOptions& options) {
  norm1 = register_module("norm1", layer_norm(options));
  attention = register_module("attention", Attention(options));
  norm2 = register_module("norm2", layer_norm(options));
  mlp = register_module("mlp", FeedForward(options));
  dropout = register_module("dropout", nn::Dropout(options.dropout));
}

at::Tensor BlockImpl::forward(const at::Tensor& x, std::int64_t past, KeyValueCache::Layer* cache,
                              const std::shared_ptr<const PackedDocuments>& documents) {
  const auto mixed = x + dropout(runtime::call(attention, norm1(x), past, cache, documents));
  return mixed + dropout(runtime::call(mlp, norm2(mixed)));
}

GptImpl::GptImpl(const GptOptions& options, std::optional<GptPart> part)
    : options_(options), part_(part.value_or(GptPart::full(options))) {
  check(options_, part_);
  // A tied head is the token embedding: a part that has only the head has a copy of it under the same name.
  if (part_.has_embedding || (part_.has_head && options_.tied))
    token = register_module("token", AdaptableEmbedding(options_.vocabulary, options_.width));
  if (part_.has_embedding && options_.positions == PositionKind::Learned)
    position = register_module("position", AdaptableEmbedding(options_.context, options_.width));
  dropout = register_module("dropout", nn::Dropout(options_.dropout));
  const auto list = register_module("blocks", std::make_shared<nn::Module>());
  for (std::int64_t i = part_.first_block; i < part_.end_block; ++i)
    blocks.emplace_back(list->register_module(std::to_string(i), Block(options_)));
  if (!part_.has_head) return;
  norm = register_module("norm", layer_norm(options_));
  if (!options_.tied)
    head = register_module(
        "head", AdaptableLinear(nn::LinearOptions(options_.width, options_.vocabulary).bias(false)));
}

at::Tensor GptImpl::forward(const at::Tensor& x) {
  return run(x, nullptr, nullptr);
}

at::Tensor GptImpl::forward(const at::Tensor& x, const at::Tensor& positions) {
  if (positions.dim() != 2 || positions.size(0) != x.size(0) || positions.size(1) != x.size(1))
    throw ShapeError(str_cat("the positions must have one number for each of ", x.size(0), " x ", x.size(1),
                             " tokens, not the shape ", format_shape(positions.sizes())));
  // Blocks that are recomputed need it after this call.
  return run(x, nullptr,
             std::make_shared<const PackedDocuments>(
                 PackedDocuments{positions, document_mask(positions).unsqueeze(1)}));
}

at::Tensor GptImpl::forward(const at::Tensor& x, KeyValueCache& cache) {
  return run(x, &cache, nullptr);
}

at::Tensor GptImpl::run(at::Tensor x, KeyValueCache* cache,
                        const std::shared_ptr<const PackedDocuments>& documents) {
  const auto past = cache == nullptr ? 0 : cache->length, time = x.size(1);
  if (past + time > options_.context)
    throw ShapeError(
        str_cat("a sequence of ", past + time, " tokens is longer than the context of ", options_.context));
  if (cache != nullptr) cache->layers.resize(blocks.size());
  if (part_.has_embedding) {
    x = token(x);
    if (!position.is_empty())
      x = x + position(documents != nullptr
                           ? documents->positions
                           : torch::arange(past, past + time, torch::dtype(torch::kLong).device(x.device())));
    x = dropout(x);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i)
    x = runtime::call(blocks[i], x, past, cache == nullptr ? nullptr : &cache->layers[i], documents);
  if (cache != nullptr) cache->length += time;
  if (!part_.has_head) return x;
  x = norm(x);
  return head.is_empty() ? torch::linear(x, token->weight) : head(x);
}

std::int64_t parameter_count(const nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

}  // namespace penstock::models
