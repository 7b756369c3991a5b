// Models for the capture tests: each kind of thing that a forward may do.
#pragma once

#include <penstock/graph/capture.h>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cmath>

namespace penstock::test {

namespace nn = torch::nn;

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

struct BlockImpl : nn::Module {
  BlockImpl(int width, int heads_) : heads(heads_) {
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
    qkv = register_module("qkv", nn::Linear(width, 3 * width));
    proj = register_module("proj", nn::Linear(width, width));
    up = register_module("up", nn::Linear(width, 4 * width));
    down = register_module("down", nn::Linear(4 * width, width));
    drop = register_module("drop", nn::Dropout(0.1));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0), time = x.size(1), width = x.size(2);
    auto parts = qkv(norm1(x)).split(width, 2);
    for (auto& part : parts) part = part.view({batch, time, heads, width / heads}).transpose(1, 2);
    const auto a = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + proj(a.transpose(1, 2).reshape({batch, time, width}));
    return x + drop(down(torch::gelu(up(norm2(x)))));
  }
  int heads;
  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  nn::Linear qkv{nullptr}, proj{nullptr}, up{nullptr}, down{nullptr};
  nn::Dropout drop{nullptr};
};
TORCH_MODULE(Block);

struct GptImpl : nn::Module {
  explicit GptImpl(int layers = 3, int width = 8, int heads = 2, int vocabulary = 13, int length = 6) {
    token = register_module("token", nn::Embedding(vocabulary, width));
    place = register_module("place", nn::Embedding(length, width));
    for (int i = 0; i < layers; ++i) blocks->push_back(Block(width, heads));
    register_module("blocks", blocks);
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    head = register_module("head", nn::Linear(nn::LinearOptions(width, vocabulary).bias(false)));
    head->weight = token->weight;
    head->register_parameter("tied", token->weight);
  }
  torch::Tensor forward(torch::Tensor tokens) {
    auto x = token(tokens) + place(torch::arange(tokens.size(1)));
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      if (i > 0) graph::pipe_split();
      const graph::ModuleScope scope("blocks." + std::to_string(i));
      x = blocks[i]->as<Block>()->forward(x);
    }
    return torch::linear(norm(x), token->weight);
  }
  nn::Embedding token{nullptr}, place{nullptr};
  nn::ModuleList blocks;
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

struct ConvNetImpl : nn::Module {
  ConvNetImpl() {
    conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)));
    norm1 = register_module("norm1", nn::BatchNorm2d(4));
    conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1).bias(false)));
    norm2 = register_module("norm2", nn::BatchNorm2d(4));
    drop = register_module("drop", nn::Dropout2d(0.2));
    fc = register_module("fc", nn::Linear(16, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(norm1(conv1(x)).relu_(), 2);
    x = x + drop(norm2(conv2(x)));
    return fc(torch::adaptive_avg_pool2d(x, {2, 2}).flatten(1));
  }
  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
  nn::Dropout2d drop{nullptr};
  nn::Linear fc{nullptr};
};
TORCH_MODULE(ConvNet);

//! An autocast region on the CPU.
struct LowPrecision {
  LowPrecision() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
  }
  ~LowPrecision() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  LowPrecision(const LowPrecision&) = delete;
  LowPrecision& operator=(const LowPrecision&) = delete;
};

//! In-place writes through views, lists, modes, factories, masks, host data, several inputs and outputs.
struct OddsImpl : nn::Module {
  OddsImpl() {
    lin = register_module("lin", nn::Linear(4, 4));
    scale = register_buffer("scale", torch::tensor({1.0F, 2.0F, 3.0F, 4.0F}));
  }
  c10::IValue forward(const value::Args& args, const value::Kwargs& kwargs) {
    const auto x = args.at(0).toTensor();
    auto h = lin(x) * scale + kwargs.at("bias").toTensor();
    const auto parts = h.chunk(2, -1);
    h = torch::cat({parts[1] * 2, parts[0]}, -1);
    h.select(1, 0).fill_(0.25);
    h.slice(1, 2, 4).mul_(lin->bias.slice(0, 0, 2));
    torch::Tensor mean;
    {
      const torch::NoGradGuard no_grad;
      mean = h.mean() + 1;
    }
    const auto host = torch::tensor({0.5F, -1.0F, 2.0F, 0.0F});
    const auto mask = torch::ones({4, 4}).tril().to(torch::kBool);
    h = h + host + torch::where(mask, h.mm(h.t()), torch::zeros({})).sum(-1, true);
    auto filled = torch::empty({4});
    filled.fill_(3.0);
    auto table = torch::tensor({1.0F, 1.0F, 1.0F, 1.0F});
    table.add_(h.detach().mean());
    h = h + filled + torch::rand({4}) + table;
    {
      const LowPrecision low;
      h = h + lin(h).to(torch::kFloat) * 0.125;
    }
    const auto top = h.topk(2, -1);
    c10::Dict<std::string, at::Tensor> out;
    out.insert("h", h);
    out.insert("values", std::get<0>(top));
    return c10::ivalue::Tuple::create({out, mean, std::get<1>(top), c10::IValue(7)});
  }
  nn::Linear lin{nullptr};
  torch::Tensor scale;
};
TORCH_MODULE(Odds);

struct UNetImpl : nn::Module {
  UNetImpl() {
    down1 = register_module("down1", nn::Conv2d(nn::Conv2dOptions(1, 4, 3).padding(1)));
    down2 = register_module("down2", nn::Conv2d(nn::Conv2dOptions(4, 8, 3).padding(1)));
    up = register_module("up", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 4, 2).stride(2)));
    last = register_module("last", nn::Conv2d(nn::Conv2dOptions(8, 1, 3).padding(1)));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto a = torch::relu(down1(x));
    const auto b = torch::relu(down2(torch::max_pool2d(a, 2)));
    return last(torch::cat({up(b), a}, 1));
  }
  nn::Conv2d down1{nullptr}, down2{nullptr}, last{nullptr};
  nn::ConvTranspose2d up{nullptr};
};
TORCH_MODULE(UNet);

inline graph::ModelTensors tensors_of_module(const nn::Module& module) {
  graph::ModelTensors tensors;
  for (const auto& item : module.named_parameters())
    tensors.parameters.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors.buffers.emplace_back(item.key(), item.value());
  return tensors;
}

//! The forward of a module of one tensor.
template <class Holder>
graph::ForwardFunction forward_of(Holder& module) {
  return [&module](const value::Args& args, const value::Kwargs&) {
    return c10::IValue(module->forward(args.at(0).toTensor()));
  };
}

}  // namespace penstock::test
