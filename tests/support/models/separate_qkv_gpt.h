// A GPT with separate projections of queries, keys and values, as plans for tensor parallelism shard them.
#pragma once

#include "support/mesh_ranks.h"

#include <penstock/runtime/module_call.h>

#include <torch/torch.h>

#include <cstdint>

namespace penstock::test {

constexpr std::int64_t kTpVocabulary = 13, kTpLength = 8, kTpWidth = 8, kTpHeads = 4;

struct SeparateQkvBlockImpl : torch::nn::Module {
  SeparateQkvBlockImpl() {
    using namespace torch::nn;
    const auto no_bias = LinearOptions(kTpWidth, kTpWidth).bias(false);
    norm1 = register_module("norm1", LayerNorm(LayerNormOptions({kTpWidth})));
    q = register_module("q", Linear(no_bias));
    k = register_module("k", Linear(no_bias));
    v = register_module("v", Linear(no_bias));
    out = register_module("out", Linear(kTpWidth, kTpWidth));
    norm2 = register_module("norm2", LayerNorm(LayerNormOptions({kTpWidth})));
    up = register_module("up", Linear(kTpWidth, 2 * kTpWidth + 1));
    down = register_module("down", Linear(2 * kTpWidth + 1, kTpWidth));
  }
  at::Tensor forward(at::Tensor x) {
    const auto b = x.size(0), t = x.size(1);
    const at::Tensor h = norm1(x);
    const auto heads = [&](torch::nn::Linear& linear) {
      return linear(h).view({b, t, kTpHeads, kTpWidth / kTpHeads}).transpose(1, 2);
    };
    const at::Tensor y = at::scaled_dot_product_attention(heads(q), heads(k), heads(v), {}, 0.0, true);
    x = x + out(y.transpose(1, 2).reshape({b, t, kTpWidth}));
    return x + down(at::gelu(up(norm2(x))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(SeparateQkvBlock);

//! Its parameters do not depend on random generators.
struct SeparateQkvGptImpl : torch::nn::Module {
  explicit SeparateQkvGptImpl(int layers = 2) {
    using namespace torch::nn;
    token = register_module("token", Embedding(kTpVocabulary, kTpWidth));
    position = register_parameter("position", torch::empty({kTpLength, kTpWidth}));
    blocks = register_module("blocks", ModuleList());
    for (int i = 0; i < layers; ++i) blocks->push_back(SeparateQkvBlock());
    norm = register_module("norm", LayerNorm(LayerNormOptions({kTpWidth})));
    head = register_module("head", Linear(LinearOptions(kTpWidth, kTpVocabulary).bias(false)));
    const torch::NoGradGuard no_grad;
    unsigned seed = 0;
    for (at::Tensor& parameter : parameters()) parameter.copy_(numbers(parameter.sizes(), ++seed) * 0.3);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = token(tokens) + position;
    for (std::size_t i = 0; i < blocks->size(); ++i)
      x = runtime::call(blocks->ptr<SeparateQkvBlockImpl>(i), x);
    return head(norm(x));
  }
  at::Tensor position;
  torch::nn::Embedding token{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(SeparateQkvGpt);

}  // namespace penstock::test
