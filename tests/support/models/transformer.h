// Transformer blocks and a GPT with a fused projection of queries, keys and values.
#pragma once

#include <penstock/graph/capture.h>

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::test {

namespace nn = torch::nn;

//! How a block divides the output of its fused projection: the values are equal, but the operators differ.
enum class QkvSplit { Split, Unbind };

//! A pre-norm block with causal attention. Dropout follows the feed-forward layers; with rate 0 there is
//! none.
struct TransformerBlockImpl : nn::Module {
  TransformerBlockImpl(std::int64_t width, std::int64_t heads_, double dropout = 0,
                       QkvSplit qkv_split_ = QkvSplit::Split)
      : heads(heads_), qkv_split(qkv_split_) {
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
    qkv = register_module("qkv", nn::Linear(width, 3 * width));
    proj = register_module("proj", nn::Linear(width, width));
    up = register_module("up", nn::Linear(width, 4 * width));
    down = register_module("down", nn::Linear(4 * width, width));
    if (dropout > 0) drop = register_module("drop", nn::Dropout(dropout));
  }
  at::Tensor forward(at::Tensor x) {
    const auto batch = x.size(0), time = x.size(1), width = x.size(2);
    const auto parts = queries_keys_values(norm1(x), batch, time, width);
    const at::Tensor a = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + proj(a.transpose(1, 2).reshape({batch, time, width}));
    const at::Tensor y = down(at::gelu(up(norm2(x))));
    return x + (drop ? drop(y) : y);
  }

  std::int64_t heads;
  QkvSplit qkv_split;
  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  nn::Linear qkv{nullptr}, proj{nullptr}, up{nullptr}, down{nullptr};
  nn::Dropout drop{nullptr};

 private:
  std::vector<at::Tensor> queries_keys_values(const at::Tensor& x, std::int64_t batch, std::int64_t time,
                                              std::int64_t width) {
    if (qkv_split == QkvSplit::Unbind)
      return qkv(x).view({batch, time, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    auto parts = qkv(x).split(width, 2);
    for (at::Tensor& part : parts) part = part.view({batch, time, heads, width / heads}).transpose(1, 2);
    return parts;
  }
};
TORCH_MODULE(TransformerBlock);

//! A GPT with dropout, split marks between its blocks and a head that is tied to the token embedding.
struct GptImpl : nn::Module {
  explicit GptImpl(int layers = 3, int width = 8, int heads = 2, int vocabulary = 13, int length = 6) {
    token = register_module("token", nn::Embedding(vocabulary, width));
    position = register_module("position", nn::Embedding(length, width));
    for (int i = 0; i < layers; ++i) blocks->push_back(TransformerBlock(width, heads, 0.1));
    register_module("blocks", blocks);
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    head = register_module("head", nn::Linear(nn::LinearOptions(width, vocabulary).bias(false)));
    head->weight = token->weight;
    head->register_parameter("tied", token->weight);
  }
  torch::Tensor forward(torch::Tensor tokens) {
    auto x = token(tokens) + position(torch::arange(tokens.size(1)));
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      if (i > 0) graph::pipe_split();
      const graph::ModuleScope scope("blocks." + std::to_string(i));
      x = blocks[i]->as<TransformerBlock>()->forward(x);
    }
    return torch::linear(norm(x), token->weight);
  }
  nn::Embedding token{nullptr}, position{nullptr};
  nn::ModuleList blocks;
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace penstock::test
