// The built-in GPT: plain torch::nn modules with the parameter names of an equivalent Python model. A module
// contains the complete model or only the part that a pipeline stage needs.
//
//   tokens [batch, time] -> token (+ position) -> blocks.0 … blocks.N-1 -> norm -> head -> logits [batch,
//   time, vocabulary]
//
// This header needs torch::nn, which takes seconds to compile; penstock.h does not include it.
#pragma once

#include <penstock/models/adaptable_embedding.h>
#include <penstock/models/adaptable_linear.h>
#include <penstock/models/documents.h>
#include <penstock/models/gpt_options.h>
#include <penstock/models/sampling.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::models {

//! Attention keys and values of previous tokens, so that generation computes only the new token.
struct KeyValueCache {
  struct Layer {
    at::Tensor keys, values;  //!< [batch, heads, length, head_width]
  };
  std::vector<Layer> layers;  //!< allocated on first use
  std::int64_t length = 0;    //!< number of cached tokens
};

//! Causal self-attention. Query, key and value are separate layers, so that tensor parallelism can shard each
//! by heads. The forward derives the number of heads from the width of the projections.
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const GptOptions& options);
  //! `past` is the number of tokens before `x`. With a cache, reads their keys and values from it and appends
  //! those of `x`. With packed documents, there is no cache.
  at::Tensor forward(const at::Tensor& x, std::int64_t past = 0, KeyValueCache::Layer* cache = nullptr,
                     const std::shared_ptr<const PackedDocuments>& documents = nullptr);

  //! Also moves the tables of rotary positions. They stay float32 and are not part of the state_dict.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

  AdaptableLinear query{nullptr}, key{nullptr}, value{nullptr}, out{nullptr};

 private:
  void move_tables(torch::Device device);
  at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) const;

  std::int64_t head_width_;
  double dropout_;
  at::Tensor cos_, sin_;  //!< [context, head_width] for rotary positions; else undefined
};
TORCH_MODULE(Attention);

//! Computes down(gelu(up(x))) or down(silu(gate(x)) * up(x)).
class FeedForwardImpl : public torch::nn::Module {
 public:
  explicit FeedForwardImpl(const GptOptions& options);
  //! Maps hidden states to hidden states of the same width.
  at::Tensor forward(const at::Tensor& x);

  AdaptableLinear gate{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(FeedForward);

//! Pre-norm: x + attention(norm1(x)), then x + mlp(norm2(x)).
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x, std::int64_t past = 0, KeyValueCache::Layer* cache = nullptr,
                     const std::shared_ptr<const PackedDocuments>& documents = nullptr);

  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  Attention attention{nullptr};
  FeedForward mlp{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Block);

//! The model, or the part of it that one stage runs.
class GptImpl : public torch::nn::Module {
 public:
  //! Builds the complete model or a part of it; parameter names are those of the complete model. Throws
  //! UsageError for invalid options.
  explicit GptImpl(const GptOptions& options, std::optional<GptPart> part = std::nullopt);

  //! Maps tokens (or the hidden state of the previous part) to logits (or the hidden state).
  at::Tensor forward(const at::Tensor& x);
  //! The same for several documents per sequence, each as if it were alone. `positions` [batch, time] holds
  //! the position of each token in its document, from 0. All parts of the model need it.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& positions);
  //! Runs the forward pass for tokens that follow those in the cache.
  at::Tensor forward(const at::Tensor& x, KeyValueCache& cache);

  const GptOptions& options() const { return options_; }
  const GptPart& part() const { return part_; }

  AdaptableEmbedding token{nullptr}, position{nullptr};
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
  AdaptableLinear head{nullptr};  //!< empty if tied
  torch::nn::Dropout dropout{nullptr};

 private:
  at::Tensor run(at::Tensor x, KeyValueCache* cache, const std::shared_ptr<const PackedDocuments>& documents);

  GptOptions options_;
  GptPart part_;
};
TORCH_MODULE(Gpt);

//! Initializes the parameters. The values depend only on the seed and the parameter name, so every split of
//! the model starts from the same values, on every device.
void initialize(torch::nn::Module& module, const GptOptions& options, std::uint64_t seed);
//! Initializes the parameter with this name.
void initialize_parameter(const at::Tensor& parameter, const std::string& name, const GptOptions& options,
                          std::uint64_t seed);

//! Continues a prompt of at least one token. `model` must be complete. The context window slides if the text
//! becomes longer than it.
std::vector<std::int64_t> sample(GptImpl& model, const std::vector<std::int64_t>& prompt,
                                 const SampleOptions& options = {});

//! Returns the total number of parameter elements.
std::int64_t parameter_count(const torch::nn::Module& module);

}  // namespace penstock::models
