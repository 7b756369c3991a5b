// Multi-layer perceptrons.
#pragma once

#include <penstock/runtime/module_call.h>

#include <torch/torch.h>

#include <cstdint>

namespace penstock::test {

namespace nn = torch::nn;

//! Linear layers with ReLU and residual connections.
struct MlpImpl : nn::Module {
  explicit MlpImpl(int count = 4, int width = 6) {
    for (int i = 0; i < count; ++i) layers->push_back(nn::Linear(width, width));
    register_module("layers", layers);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = torch::relu(layer->as<nn::Linear>()->forward(x)) + x;
    return x;
  }
  nn::ModuleList layers;
};
TORCH_MODULE(Mlp);

//! Two linear layers, called through `runtime::call` so that each can be a unit of a sharded model.
struct TwoLayerMlpImpl : torch::nn::Module {
  TwoLayerMlpImpl() {
    first = register_module("first", torch::nn::Linear(5, 7));
    second = register_module("second", torch::nn::Linear(7, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return runtime::call(second, at::gelu(runtime::call(first, x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(TwoLayerMlp);

//! A feed-forward block with a layer norm and a residual connection. The hidden width is odd, so that no
//! number of ranks divides it evenly.
struct ResidualMlpImpl : nn::Module {
  explicit ResidualMlpImpl(std::int64_t width) {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    up = register_module("up", nn::Linear(width, 2 * width + 1));
    down = register_module("down", nn::Linear(2 * width + 1, width));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(norm(x)))); }
  nn::LayerNorm norm{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(ResidualMlp);

}  // namespace penstock::test
