// Models of the runtime benchmarks, split into stages. reference.py has the same models.
#pragma once

#include "support/models/transformer.h"

#include <penstock/penstock.h>

#include <torch/torch.h>

namespace penstock::bench {

inline test::TransformerBlock make_block(std::int64_t width) {
  return test::TransformerBlock(width, 4, 0.0, test::QkvSplit::Unbind);
}

//! A stage, the batch, and the loss.
struct Work {
  std::shared_ptr<runtime::StageModule> module;
  value::Args args;
  c10::IValue target;
  runtime::LossFunction loss;
  std::function<at::Tensor(std::int64_t rows)> hidden;  // the activation between stages
};

inline Work linear(int /*stage*/, int /*stages*/ = 2) {
  const int rows = 256;
  return {
      runtime::make_stage_module(torch::nn::Linear(16, 16)),
      {torch::randn({rows, 16})},
      torch::randn({rows, 16}),
      runtime::tensor_loss([](const at::Tensor& y, const at::Tensor& t) { return torch::mse_loss(y, t); }),
      [](std::int64_t n) {
        return torch::randn({n, 16});
      }};
}

inline Work gpt(int stage, int stages = 2) {
  constexpr std::int64_t width = 256, tokens = 512, length = 128, batch = 16;
  constexpr int blocks = 4;
  torch::nn::Sequential layers;
  if (stage == 0) layers->push_back(torch::nn::Embedding(tokens, width));
  for (int i = 0; i < blocks / stages; ++i) layers->push_back(make_block(width));
  if (stage == stages - 1)
    layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, tokens).bias(false)));
  return {runtime::make_stage_module(layers),
          {torch::randint(tokens, {batch, length})},
          torch::randint(tokens, {batch, length}),
          runtime::tensor_loss([](const at::Tensor& y, const at::Tensor& t) {
            return at::cross_entropy_loss(y.flatten(0, 1), t.flatten());
          }),
          [](std::int64_t n) {
            return torch::randn({n, length, width});
          }};
}

}  // namespace penstock::bench
