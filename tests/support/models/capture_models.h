// Models for capture tests: the shared test models, and one that uses every feature a forward may use.
#pragma once

#include "support/models/mlp.h"
#include "support/models/transformer.h"
#include "support/models/vision.h"

#include <penstock/graph/capture.h>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

namespace penstock::test {

namespace nn = torch::nn;

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

//! Uses in-place writes through views, lists, modes, factory functions, masks, host data, several inputs and
//! outputs.
struct EveryFeatureImpl : nn::Module {
  EveryFeatureImpl() {
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
TORCH_MODULE(EveryFeature);

inline graph::ModelTensors tensors_of_module(const nn::Module& module) {
  graph::ModelTensors tensors;
  for (const auto& item : module.named_parameters()) tensors.parameters.push_back({item.key(), item.value()});
  for (const auto& item : module.named_buffers()) tensors.buffers.push_back({item.key(), item.value()});
  return tensors;
}

//! The forward function of a module that takes one tensor.
template <class Holder>
graph::ForwardFunction forward_of(Holder& module) {
  return [&module](const value::Args& args, const value::Kwargs&) {
    return c10::IValue(module->forward(args.at(0).toTensor()));
  };
}

}  // namespace penstock::test
