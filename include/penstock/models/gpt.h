// The built-in GPT, and a model of how to write one: plain torch::nn modules whose parameters have the names
// that a Python model of the same build would give them. Whole, or only the part that a pipeline stage needs.
//
//   tokens [batch, time] -> token (+ position) -> blocks.0 … blocks.N-1 -> norm -> head -> logits [batch,
//   time, vocabulary]
//
// This header needs torch::nn, which takes seconds to compile; penstock.h does not include it.
#pragma once

#include <penstock/models/gpt_options.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::models {

//! Keys and values of the tokens that a model has seen, so that the next token costs one token's work.
struct KeyValueCache {
  struct Layer {
    at::Tensor keys, values;  //!< [batch, heads, length, head_width]
  };
  std::vector<Layer> layers;  //!< made on first use
  std::int64_t length = 0;    //!< tokens seen
};

//! Causal self-attention. Query, key and value are layers of their own, so that tensor parallelism can cut
//! each by heads; the number of heads follows from the width that arrives.
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const GptOptions& options);
  //! `past` tokens come before these; with a cache their keys and values are taken from it and these are
  //! added.
  at::Tensor forward(const at::Tensor& x, std::int64_t past = 0, KeyValueCache::Layer* cache = nullptr);

  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, out{nullptr};

 private:
  at::Tensor rotate(const at::Tensor& x, std::int64_t past) const;

  std::int64_t head_width_;
  double dropout_;
  at::Tensor cos_, sin_;  //!< [context, head_width] of rotary positions; else undefined
};
TORCH_MODULE(Attention);

//! down(gelu(up(x))), or down(silu(gate(x)) * up(x)).
class FeedForwardImpl : public torch::nn::Module {
 public:
  explicit FeedForwardImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear gate{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(FeedForward);

//! Pre-norm: x + attention(norm1(x)), then x + mlp(norm2(x)).
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x, std::int64_t past = 0, KeyValueCache::Layer* cache = nullptr);

  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  Attention attention{nullptr};
  FeedForward mlp{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Block);

class GptImpl : public torch::nn::Module {
 public:
  //! The whole model, or a part of it; parameters keep their names in the whole. UsageError for options that
  //! fit no model.
  explicit GptImpl(const GptOptions& options, std::optional<GptPart> part = std::nullopt);

  //! Tokens (or the hidden state of the part before) to logits (or the hidden state).
  at::Tensor forward(const at::Tensor& x);
  //! The same for tokens that follow those in the cache.
  at::Tensor forward(const at::Tensor& x, KeyValueCache& cache);

  const GptOptions& options() const { return options_; }
  const GptPart& part() const { return part_; }

  torch::nn::Embedding token{nullptr}, position{nullptr};
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};  //!< none if it is tied
  torch::nn::Dropout dropout{nullptr};

 private:
  at::Tensor run(at::Tensor x, KeyValueCache* cache);

  GptOptions options_;
  GptPart part_;
};
TORCH_MODULE(Gpt);

//! Fills the parameters. Each one's values follow from the seed and its name alone, so that every split of a
//! model, over any ranks, begins with the same numbers.
void initialise(torch::nn::Module& module, const GptOptions& options, std::uint64_t seed);

struct SampleOptions {
  std::int64_t tokens = 100;
  double temperature = 0.8;  //!< 0: always the likeliest
  std::int64_t top = 0;      //!< choose among so many of the likeliest; 0: all
  std::uint64_t seed = 0;
};

//! Continues a prompt (at least one token) with a whole model. Longer than the context, the window slides.
std::vector<std::int64_t> sample(GptImpl& model, const std::vector<std::int64_t>& prompt,
                                 const SampleOptions& options = {});

//! How many numbers the parameters are.
std::int64_t parameter_count(const torch::nn::Module& module);

}  // namespace penstock::models
