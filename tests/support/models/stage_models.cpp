// The stage models. Parameters come from an explicitly seeded generator, so that all ranks and the dense run
// start with equal values.
#include "support/models/stage_models.h"

#include <torch/torch.h>

namespace penstock::test {
namespace {

constexpr std::int64_t kWidth = 6;
constexpr std::int64_t kTokens = 11;

at::Generator generator(std::uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

at::Tensor values(std::vector<std::int64_t> shape, std::uint64_t seed) {
  return at::randn(shape, generator(seed));
}

template <class Module>
std::shared_ptr<Module> filled(std::shared_ptr<Module> module, int stage) {
  const at::NoGradGuard no_grad;
  std::uint64_t seed = 100 * static_cast<std::uint64_t>(stage + 1);
  for (at::Tensor& parameter : module->parameters())
    parameter.copy_(values(parameter.sizes().vec(), seed++) * 0.4);
  return module;
}

at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().mean();
}

template <class Make>
auto each_stage(Make make) {
  return [make](int stages) {
    std::vector<std::shared_ptr<runtime::StageModule>> modules;
    for (int stage = 0; stage < stages; ++stage)
      modules.push_back(runtime::make_stage_module(filled(make(stage, stages), stage)));
    return modules;
  };
}

TestBatch vectors(int rows) {
  return {{values({rows, kWidth}, 1)}, values({rows, kWidth}, 2)};
}

struct MlpStage : torch::nn::Module {
  explicit MlpStage(double dropout_rate) : rate(dropout_rate) {
    linear = register_module("linear", torch::nn::Linear(kWidth, kWidth));
  }
  at::Tensor forward(at::Tensor x) { return torch::dropout(torch::tanh(linear(x)), rate, is_training()) + x; }
  double rate;
  torch::nn::Linear linear{nullptr};
};

struct Embed : torch::nn::Module {
  Embed() { table = register_module("table", torch::nn::Embedding(kTokens, kWidth)); }
  at::Tensor forward(at::Tensor tokens) { return table(tokens); }
  torch::nn::Embedding table{nullptr};
};

struct Block : torch::nn::Module {
  Block() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
  }
  at::Tensor forward(at::Tensor x) {
    const auto parts = qkv(norm(x)).chunk(3, -1);
    const at::Tensor scores = torch::softmax(parts[0].matmul(parts[1].transpose(-2, -1)), -1);
    return x + out(scores.matmul(parts[2]));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr};
};

struct Head : torch::nn::Module {
  Head() { weight = register_parameter("weight", torch::zeros({kTokens, kWidth})); }
  at::Tensor forward(at::Tensor x) { return x.matmul(weight.t()); }
  at::Tensor weight;
};

struct ConvStage : torch::nn::Module {
  ConvStage() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 2, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(2));
  }
  at::Tensor forward(at::Tensor x) { return torch::relu(norm(conv(x))) + x; }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
};

// Sends its input to its mirror stage, or receives that of its mirror stage.
struct SkipStage : torch::nn::Module {
  SkipStage(int stage_index, int stages) : stage(stage_index), mirror(stages - 1 - stage_index) {
    linear = register_module("linear", torch::nn::Linear(kWidth, kWidth));
  }
  runtime::StageResult forward(const value::Args& args, const value::Kwargs& kwargs) {
    const at::Tensor x = torch::tanh(linear(args.at(0).toTensor()));
    if (stage < mirror) return {x, {{"skip" + std::to_string(stage), x * 2}}};
    if (stage == mirror) return x;
    return x + kwargs.at("skip" + std::to_string(mirror)).toTensor();
  }
  int stage, mirror;
  torch::nn::Linear linear{nullptr};
};

// Passes (x, counts, unused, None) from stage to stage; every stage takes its own mask.
struct ManyStage : torch::nn::Module {
  ManyStage(int stage_index, int stages) : first(stage_index == 0), last(stage_index == stages - 1) {
    linear = register_module("linear", torch::nn::Linear(kWidth, kWidth));
    side = register_module("side", torch::nn::Linear(kWidth, 2));
  }
  runtime::StageResult forward(const value::Args& args, const value::Kwargs& kwargs) {
    const at::Tensor x = linear(args.at(0).toTensor()) * kwargs.at("mask").toTensor();
    at::Tensor counts = args.at(1).toTensor();
    if (!first && !args.at(3).isNone()) throw std::logic_error("the third value should be None");
    if (!first && args.at(4).toInt() != 7) throw std::logic_error("the fourth value should be 7");
    counts = counts + 1;
    if (last) {
      c10::Dict<std::string, at::Tensor> result;
      result.insert("value", x * (1 + 0.01 * counts.unsqueeze(1)));
      result.insert("counts", counts);
      return c10::IValue(result);
    }
    return c10::IValue(
        c10::ivalue::Tuple::create({x.t().contiguous().t(), counts, side(x), c10::IValue(), 7}));
  }
  bool first, last;
  torch::nn::Linear linear{nullptr}, side{nullptr};
};

}  // namespace

PipelineModel mlp() {
  return {"mlp", each_stage([](int, int) { return std::make_shared<MlpStage>(0.3); }), vectors,
          runtime::tensor_loss(mean_square)};
}

PipelineModel frozen_mlp() {
  const auto make = [](int stage, int) {
    auto module = std::make_shared<MlpStage>(0.0);
    if (stage % 2 == 0) {
      for (at::Tensor& parameter : module->parameters()) parameter.requires_grad_(false);
    }
    return module;
  };
  PipelineModel model{"frozen", each_stage(make), vectors, {}};
  model.loss = [](const c10::IValue& output, const c10::IValue& target, const value::Kwargs&) {
    at::Tensor loss = mean_square(output.toTensor(), target.toTensor());
    return loss.requires_grad() ? loss : loss.detach().requires_grad_(true);  // a single stage, fully frozen
  };
  return model;
}

PipelineModel tied_transformer() {
  PipelineModel model;
  model.name = "transformer";
  model.make = [](int stages) {
    std::vector<std::shared_ptr<runtime::StageModule>> modules;
    for (int stage = 0; stage < stages; ++stage) {
      auto sequence = torch::nn::Sequential();
      if (stage == 0) sequence->push_back("embed", Embed());
      sequence->push_back("block", Block());
      if (stage == stages - 1) sequence->push_back("head", Head());
      filled(sequence.ptr(), stage);
      const at::NoGradGuard no_grad;
      const at::Tensor table = values({kTokens, kWidth}, 77);
      for (auto& item : sequence->named_parameters()) {
        if (item.key() == "embed.table.weight" || item.key() == "head.weight") item.value().copy_(table);
      }
      modules.push_back(runtime::make_stage_module(sequence));
    }
    return modules;
  };
  model.batch = [](int rows) {
    return TestBatch{{at::randint(kTokens, {rows, 4}, generator(5))},
                     at::randint(kTokens, {rows, 4}, generator(6))};
  };
  model.loss = runtime::tensor_loss([](const at::Tensor& output, const at::Tensor& target) {
    return at::cross_entropy_loss(output.flatten(0, 1), target.flatten());
  });
  model.shared = [](int stages) {
    return std::vector<runtime::SharedParameter>{
        {{StageId(0), "embed.table.weight"}, {StageId(stages - 1), "head.weight"}}};
  };
  model.exact = false;
  return model;
}

PipelineModel batch_norm_cnn() {
  PipelineModel model{"cnn",
                      each_stage([](int, int) { return std::make_shared<ConvStage>(); }),
                      {},
                      runtime::tensor_loss(mean_square)};
  model.batch = [](int rows) { return TestBatch{{values({rows, 2, 4, 4}, 1)}, values({rows, 2, 4, 4}, 2)}; };
  return model;
}

PipelineModel skip_net() {
  PipelineModel model{
      "skips", each_stage([](int stage, int stages) { return std::make_shared<SkipStage>(stage, stages); }),
      vectors, runtime::tensor_loss(mean_square)};
  model.skips = [](int stages) {
    std::vector<runtime::SkipValue> skips;
    for (int stage = 0; stage < stages - 1 - stage; ++stage)
      skips.push_back({"skip" + std::to_string(stage), StageId(stage), StageId(stages - 1 - stage)});
    return skips;
  };
  return model;
}

PipelineModel many_values() {
  PipelineModel model{
      "many",
      each_stage([](int stage, int stages) { return std::make_shared<ManyStage>(stage, stages); }),
      {},
      {}};
  model.batch = [](int rows) {
    TestBatch input{{values({rows, kWidth}, 1), at::arange(rows)}, values({rows, kWidth}, 2)};
    for (int stage = 0; stage < 32; ++stage)
      input.options.stage_kwargs[StageId(stage)]["mask"] =
          at::randint(2, {rows, kWidth}, generator(9)).to(at::kFloat);
    return input;
  };
  model.loss = [](const c10::IValue& output, const c10::IValue& target, const value::Kwargs&) {
    return mean_square(output.toGenericDict().at("value").toTensor(), target.toTensor());
  };
  return model;
}

std::vector<PipelineModel> all_models() {
  return {mlp(), frozen_mlp(), tied_transformer(), batch_norm_cnn(), skip_net(), many_values()};
}

}  // namespace penstock::test
