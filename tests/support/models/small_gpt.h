// A GPT that is small enough for many dense runs, with sizes that no number of ranks divides evenly, and the
// data and optimizer that train it.
#pragma once

#include <penstock/parallel/tensor_parallel.h>
#include <penstock/runtime/module_call.h>

#include <torch/torch.h>

#include <string>
#include <vector>

namespace penstock::test {

constexpr std::int64_t kVocabulary = 13, kLength = 5, kGptWidth = 6, kHeads = 2;

struct GptBlockImpl : torch::nn::Module {
  GptBlockImpl() {
    using namespace torch::nn;
    norm1 = register_module("norm1", LayerNorm(LayerNormOptions({kGptWidth})));
    // No bias: the exact gradient of the keys' bias is 0, and AdamW would amplify its rounding errors.
    qkv = register_module("qkv", Linear(LinearOptions(kGptWidth, 3 * kGptWidth).bias(false)));
    out = register_module("out", Linear(kGptWidth, kGptWidth));
    norm2 = register_module("norm2", LayerNorm(LayerNormOptions({kGptWidth})));
    up = register_module("up", Linear(kGptWidth, 2 * kGptWidth + 1));
    down = register_module("down", Linear(2 * kGptWidth + 1, kGptWidth));
  }
  at::Tensor forward(at::Tensor x) {
    const auto b = x.size(0), t = x.size(1);
    const auto parts =
        qkv(norm1(x)).view({b, t, 3, kHeads, kGptWidth / kHeads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + out(y.transpose(1, 2).reshape({b, t, kGptWidth}));
    return x + down(at::gelu(up(norm2(x))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(GptBlock);

//! A head that shares its weight with the token embedding, or has its own.
struct GptHeadImpl : torch::nn::Module, parallel::ExchangeableParameters {
  explicit GptHeadImpl(const at::Tensor& initial) { weight = register_parameter("weight", initial); }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(weight.t()); }
  void exchange_parameter(const std::string& /*name*/, const at::Tensor& distributed) override {
    weight = distributed;
  }
  at::Tensor weight;
};
TORCH_MODULE(GptHead);

enum class Variant { Plain, Tied, Frozen };

inline const char* text(Variant variant) {
  switch (variant) {
    case Variant::Plain:
      return "plain";
    case Variant::Tied:
      return "tied";
    case Variant::Frozen:
      return "frozen";
  }
  return "";
}

struct SmallGptImpl : torch::nn::Module {
  explicit SmallGptImpl(Variant variant = Variant::Plain, int layers = 2, std::uint64_t seed = 1) {
    using namespace torch::nn;
    token = register_module("token", Embedding(kVocabulary, kGptWidth));
    position = register_parameter("position", torch::empty({kLength, kGptWidth}));
    blocks = register_module("blocks", ModuleList());
    for (int i = 0; i < layers; ++i) blocks->push_back(GptBlock());
    norm = register_module("norm", LayerNorm(LayerNormOptions({kGptWidth})));
    const at::Tensor own = torch::empty({kVocabulary, kGptWidth});
    head = register_module("head", GptHead(variant == Variant::Tied ? token->weight : own));
    const torch::NoGradGuard no_grad;
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    for (at::Tensor& parameter : parameters()) parameter.normal_(0, 0.3, generator);
    if (variant == Variant::Frozen) {
      token->weight.set_requires_grad(false);
      for (at::Tensor& parameter : blocks[0]->parameters()) parameter.set_requires_grad(false);
      norm->bias.set_requires_grad(false);
    }
  }

  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = token(tokens) + position;
    for (std::size_t i = 0; i < blocks->size(); ++i) x = runtime::call(blocks->ptr<GptBlockImpl>(i), x);
    return head(norm(x));
  }

  at::Tensor position;
  torch::nn::Embedding token{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  GptHead head{nullptr};
};
TORCH_MODULE(SmallGpt);

struct Tokens {
  at::Tensor inputs, targets;

  //! The rows of one of `ranks` ranks.
  Tokens shard(int rank, int ranks) const {
    const auto rows = [&](const at::Tensor& all) { return all.chunk(ranks)[static_cast<std::size_t>(rank)]; };
    return {rows(inputs), rows(targets)};
  }
};

//! The batch of a step.
inline Tokens tokens_of(std::int64_t rows, std::int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(1000 + step));
  const at::Tensor all = at::randint(0, kVocabulary, {rows, kLength + 1}, generator);
  return {all.narrow(1, 0, kLength), all.narrow(1, 1, kLength)};
}

inline at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

inline torch::optim::AdamW adamw(const std::vector<at::Tensor>& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
}

}  // namespace penstock::test
