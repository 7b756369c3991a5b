// Models of the runtime benchmarks, with one stage per rank. reference.py has the same models.
#pragma once

#include <penstock/penstock.h>

#include <torch/torch.h>

namespace penstock::bench {

struct Block : torch::nn::Module {
  Block(std::int64_t width, std::int64_t head_count) : heads(head_count) {
    using namespace torch::nn;
    norm1 = register_module("norm1", LayerNorm(LayerNormOptions({width})));
    norm2 = register_module("norm2", LayerNorm(LayerNormOptions({width})));
    qkv = register_module("qkv", Linear(width, 3 * width));
    proj = register_module("proj", Linear(width, width));
    up = register_module("up", Linear(width, 4 * width));
    down = register_module("down", Linear(4 * width, width));
  }
  at::Tensor forward(at::Tensor x) {
    const auto b = x.size(0), t = x.size(1), d = x.size(2);
    const auto parts = qkv(norm1(x)).view({b, t, 3, heads, d / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + proj(y.transpose(1, 2).reshape({b, t, d}));
    return x + down(at::gelu(up(norm2(x))));
  }
  std::int64_t heads;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, proj{nullptr}, up{nullptr}, down{nullptr};
};

struct Work {
  std::shared_ptr<runtime::StageModule> module;
  runtime::StepInput input;
  runtime::LossFunction loss;
  std::function<at::Tensor(std::int64_t rows)> hidden;  // the activation between stages
};

inline Work linear(int) {
  const int rows = 256;
  return {
      runtime::make_stage_module(torch::nn::Linear(16, 16)),
      {{torch::randn({rows, 16})}, {}, torch::randn({rows, 16})},
      runtime::tensor_loss([](const at::Tensor& y, const at::Tensor& t) { return torch::mse_loss(y, t); }),
      [](std::int64_t n) {
        return torch::randn({n, 16});
      }};
}

inline Work gpt(int rank) {
  constexpr std::int64_t width = 256, tokens = 512, length = 128, batch = 16;
  torch::nn::Sequential stage;
  if (rank == 0) stage->push_back(torch::nn::Embedding(tokens, width));
  stage->push_back(std::make_shared<Block>(width, 4));
  stage->push_back(std::make_shared<Block>(width, 4));
  if (rank == 1) stage->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, tokens).bias(false)));
  return {runtime::make_stage_module(stage),
          {{torch::randint(tokens, {batch, length})}, {}, torch::randint(tokens, {batch, length})},
          runtime::tensor_loss([](const at::Tensor& y, const at::Tensor& t) {
            return at::cross_entropy_loss(y.flatten(0, 1), t.flatten());
          }),
          [](std::int64_t n) {
            return torch::randn({n, length, width});
          }};
}

}  // namespace penstock::bench
