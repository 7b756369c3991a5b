// Models as functions of explicit parameter tensors, for tests of the backward pass.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <utility>
#include <vector>

namespace penstock::test {

namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;

//! The parameters of a stage, and its forward as a function of the inputs.
struct FunctionalModel {
  Tensors params;
  std::function<Tensors(const Tensors&)> forward;
};

template <class M>
FunctionalModel module_model(M module, std::function<Tensors(M&, const Tensors&)> forward) {
  return {module->parameters(),
          [module, forward = std::move(forward)](const Tensors& x) mutable { return forward(module, x); }};
}

inline FunctionalModel functional_mlp() {
  torch::manual_seed(1);
  nn::Sequential net(nn::Linear(8, 16), nn::GELU(), nn::LayerNorm(nn::LayerNormOptions({16})),
                     nn::Linear(16, 8));
  return module_model<nn::Sequential>(
      net, [](nn::Sequential& m, const Tensors& x) { return Tensors{m->forward(x[0])}; });
}

inline at::Tensor attention(const at::Tensor& x, const at::Tensor& qkv, const at::Tensor& out, int heads) {
  const auto rows = x.size(0), time = x.size(1), width = x.size(2);
  const auto parts = nn::functional::linear(x, qkv)
                         .view({rows, time, 3, heads, width / heads})
                         .permute({2, 0, 3, 1, 4})
                         .unbind(0);
  const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
  return nn::functional::linear(mixed.transpose(1, 2).reshape({rows, time, width}), out);
}

inline FunctionalModel functional_transformer(int blocks, bool embedding, bool tied_head) {
  torch::manual_seed(2);
  constexpr int width = 16, vocabulary = 11;
  FunctionalModel model;
  const auto param = [&](at::IntArrayRef shape) {
    model.params.push_back((torch::randn(shape) * 0.2).set_requires_grad(true));
    return model.params.back();
  };
  struct Block {
    at::Tensor norm1, bias1, qkv, out, norm2, bias2, up, up_bias, down, down_bias;
  };
  std::vector<Block> all;
  for (int i = 0; i < blocks; ++i) {
    all.push_back({param({width}), param({width}), param({3 * width, width}), param({width, width}),
                   param({width}), param({width}), param({4 * width, width}), param({4 * width}),
                   param({width, 4 * width}), param({width})});
  }
  const at::Tensor tokens = embedding || tied_head ? param({vocabulary, width}) : at::Tensor();
  model.forward = [=](const Tensors& inputs) {
    at::Tensor x = embedding ? nn::functional::embedding(inputs[0], tokens) : inputs[0];
    for (const Block& b : all) {
      x = x + attention(at::layer_norm(x, {width}, b.norm1, b.bias1), b.qkv, b.out, 4);
      const at::Tensor hidden = at::dropout(
          at::gelu(nn::functional::linear(at::layer_norm(x, {width}, b.norm2, b.bias2), b.up, b.up_bias)),
          0.1, true);
      x = x + nn::functional::linear(hidden, b.down, b.down_bias);
    }
    return Tensors{tied_head ? nn::functional::linear(x, tokens) : x};
  };
  return model;
}

inline FunctionalModel functional_cnn() {
  torch::manual_seed(3);
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 6, 3).padding(1)), nn::BatchNorm2d(6), nn::ReLU(),
                     nn::Conv2d(nn::Conv2dOptions(6, 6, 3).groups(2)), nn::MaxPool2d(2),
                     nn::ConvTranspose2d(nn::ConvTranspose2dOptions(6, 4, 2)), nn::Flatten(),
                     nn::Linear(4 * 4 * 4, 5));
  return module_model<nn::Sequential>(
      net, [](nn::Sequential& m, const Tensors& x) { return Tensors{m->forward(x[0])}; });
}

}  // namespace penstock::test
