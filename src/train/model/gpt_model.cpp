// Implements the model interface for the built-in GPT. Splits it between blocks so that the cost of the
// slowest stage is minimal.
#include "base/text.h"
#include "train/lora/gpt_adapters.h"
#include "train/model/archive_loss.h"
#include "train/model/gpt_parts.h"
#include "train/model/recomputed_modules.h"
#include "train/model/tensor_parallel_stage.h"

#include <penstock/base/error.h>
#include <penstock/graph/capture.h>
#include <penstock/models/gpt.h>
#include <penstock/parallel/loss_parallel.h>
#include <penstock/plan/partition.h>
#include <penstock/runtime/recompute.h>
#include <penstock/tensor/dtensor.h>
#include <penstock/train/model.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>

namespace penstock::train {
namespace {

using models::Gpt;
using models::GptOptions;
using models::GptPart;

constexpr const char* kPositions = "positions";

// Multiplications per token. A backward pass costs twice a forward pass for every layer.
plan::Layer layer_of(std::string name, std::int64_t multiplications) {
  plan::Layer layer{std::move(name), {}};
  layer.costs.forward = static_cast<double>(multiplications);
  layer.costs.input = layer.costs.weight = layer.costs.forward;
  return layer;
}

std::vector<plan::Layer> layers_of(const GptOptions& options) {
  const auto matrices = options.feed_forward == models::FeedForwardKind::SwiGlu ? 3 : 2;
  const auto width = options.width;
  const auto block = 4 * width * width + matrices * width * options.hidden_width() + width * options.context;
  std::vector<plan::Layer> layers{layer_of("token", width)};
  for (std::int64_t i = 0; i < options.layers; ++i) layers.push_back(layer_of(str_cat("blocks.", i), block));
  layers.push_back(layer_of("head", width * options.vocabulary));
  return layers;
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, double smoothing) {
  using torch::nn::functional::CrossEntropyFuncOptions;
  const at::Tensor rows = logits.to(at::kFloat).flatten(0, -2), labels = target.flatten();
  if (!tensor::is_dtensor(logits))
    return torch::nn::functional::cross_entropy(rows, labels,
                                                CrossEntropyFuncOptions().label_smoothing(smoothing));
  const parallel::LossParallel keep;  // logits stay sharded: only a few numbers per token are sent
  const at::Tensor log_probabilities = at::log_softmax(rows, 1);
  const at::Tensor loss = tensor::full_tensor(at::nll_loss(log_probabilities, labels));
  if (smoothing == 0) return loss;
  // The mean over the valid labels of the cross entropy with equal probabilities of all classes.
  const at::Tensor sums = tensor::full_tensor(log_probabilities.sum(1)), valid = labels.ne(kIgnoredLabel);
  const at::Tensor uniform = (sums * valid).sum() / (valid.sum() * -rows.size(1));
  return loss * (1 - smoothing) + uniform * smoothing;
}

// The model with adapters, without memory.
Gpt gpt_on_meta(const GptOptions& options, const std::optional<Lora>& lora) {
  const graph::MetaDeviceScope no_memory;
  Gpt model(options);
  if (lora) add_adapters(*model, lora->options);
  return model;
}

class StagedGpt : public StagedModel {
 public:
  StagedGpt(const GptOptions& options, std::uint64_t seed, const std::optional<Lora>& lora,
            const ModelSplit& split)
      : options_(options), seed_(seed), lora_(lora), parts_(gpt_parts(options, split)) {}

  std::shared_ptr<runtime::StageModule> stage(StageId stage,
                                              const std::optional<comm::Group>& tensor_group) override {
    const GptPart& part = parts_.at(stage.index());
    if (tensor_group) check_tensor_ranks(tensor_group->size());
    Gpt module(options_, part);
    models::initialize(*module, options_, seed_);
    if (lora_) add_adapters(*module, lora_->options);
    for (const auto& item : module->named_modules("", false))
      if (std::find(recomputed_.begin(), recomputed_.end(), item.key()) != recomputed_.end())
        runtime::recompute_calls(item.value());
    const runtime::StageFunction forward = [model = module.ptr()](const value::Args& args,
                                                                  const value::Kwargs& kwargs) {
      const at::Tensor& x = args.at(0).toTensor();
      const auto positions = kwargs.find(kPositions);
      return runtime::StageResult(
          positions == kwargs.end() ? model->forward(x) : model->forward(x, positions->second.toTensor()));
    };
    if (!tensor_group) return runtime::make_stage_module(module.ptr(), forward, {kPositions});
    return tensor_parallel_stage(module.ptr(), forward, *tensor_group,
                                 part.has_head ? StageOutput::Sharded : StageOutput::Full);
  }

  void check_tensor_ranks(int ranks) const override {
    if (options_.heads % ranks != 0)
      throw UsageError(
          str_cat(options_.heads, " heads cannot be divided among ", ranks, " tensor-parallel ranks"), {},
          "use a number of tensor-parallel ranks that divides the number of heads");
  }

  // The other modules keep hardly more than their inputs and results.
  void recompute_modules(const std::vector<std::string>& patterns) override {
    std::vector<std::string> paths;
    for (std::int64_t i = 0; i < options_.layers; ++i)
      for (const char* const module : {"", ".attention", ".mlp"})
        paths.push_back(str_cat("blocks.", i, module));
    recomputed_ = recomputed_modules(patterns, paths);
  }

  std::vector<runtime::SharedParameter> shared() const override {
    if (!options_.tied || parts_.size() < 2) return {};
    const StageId last(static_cast<std::int64_t>(parts_.size()) - 1);
    return {{{StageId(0), "token.weight"}, {last, "token.weight"}}};
  }

  ModelState state() const override {
    ModelState state;
    if (!lora_) return state;
    for (const AdaptedLayer& layer : lora_->layers) state.adapters.insert({layer.a(), layer.b()});
    for (const auto& item : gpt_on_meta(options_, std::nullopt)->named_parameters())
      state.base.insert(item.key());
    return state;
  }

 private:
  GptOptions options_;
  std::uint64_t seed_;
  std::optional<Lora> lora_;
  std::vector<GptPart> parts_;
  std::vector<std::string> recomputed_;
};

class GptModel : public Model {
 public:
  GptModel(const GptOptions& options, std::uint64_t seed, const std::optional<LoraOptions>& lora,
           const LossOptions& loss)
      : options_(options),
        seed_(seed),
        smoothing_(loss.label_smoothing),
        plain_(gpt_on_meta(options, std::nullopt)) {
    check_loss_options(LossKind::CrossEntropy, loss, options.vocabulary);
    if (!loss.class_weights.empty())
      throw UsageError("the loss of the GPT has no class_weights", {}, "leave them out");
    if (lora) lora_ = selected_layers(*plain_, *lora);
  }

  std::string summary() const override {
    const auto count = static_cast<double>(models::parameter_count(*plain_));
    const std::string text =
        formatted("GPT of %lld layers, width %lld, %lld heads, %.2f M parameters",
                  static_cast<long long>(options_.layers), static_cast<long long>(options_.width),
                  static_cast<long long>(options_.heads), count / 1e6);
    return lora_ ? text + "; " + to_string(*lora_) : text;
  }

  ModelSplit split(int stages) const override {
    const std::vector<plan::Layer> layers = layers_of(options_);
    if (stages > static_cast<int>(layers.size()))
      throw UsageError(str_cat("a GPT of ", options_.layers, " layers can be split into at most ",
                               layers.size(), " stages, not ", stages),
                       {}, "use more layers, or fewer pipeline ranks or stages per rank");
    plan::PartitionOptions partition;
    for (int s = 0; s < stages; ++s) partition.rank_of_stage.emplace_back(s);
    const std::vector<int> first = partition_layers(layers, partition)->first_layer;
    return {graph::SplitPositions(first.begin() + 1, first.begin() + stages)};
  }

  std::unique_ptr<StagedModel> split_at(const ModelSplit& split) const override {
    return std::make_unique<StagedGpt>(options_, seed_, lora_, split);
  }

  runtime::LossFunction loss() const override {
    return runtime::tensor_loss([smoothing = smoothing_](const at::Tensor& logits, const at::Tensor& target) {
      return cross_entropy(logits, target, smoothing);
    });
  }
  runtime::LossReduction reduction() const override {
    return runtime::LossReduction::mean_over_valid_labels();
  }

  std::vector<checkpoint::Piece> state_metadata() const override {
    std::vector<checkpoint::Piece> pieces;
    const Gpt model = gpt_on_meta(options_, lora_);
    for (const auto& item : model->named_parameters())
      pieces.push_back(checkpoint::full_piece(
          item.key(), item.value().detach().set_requires_grad(item.value().requires_grad())));
    for (const auto& item : model->named_buffers())
      pieces.push_back(full_piece(item.key(), item.value(), checkpoint::PieceKind::Buffer));
    return pieces;
  }

  const Lora* lora() const override { return lora_ ? &*lora_ : nullptr; }
  at::Tensor read_base(const std::string& name, std::optional<std::uint64_t> seed) const override {
    const at::Tensor value = at::empty(plain_->named_parameters()[name].sizes());
    models::initialize_parameter(value, name, options_, seed.value_or(seed_));
    return value;
  }

 private:
  GptOptions options_;
  std::uint64_t seed_;
  double smoothing_;  // of the labels
  Gpt plain_;         // without adapters and memory
  std::optional<Lora> lora_{};
};

}  // namespace

std::vector<GptPart> gpt_parts(const GptOptions& options, const ModelSplit& split) {
  std::vector<GptPart> parts;
  std::int64_t begin = 0;
  const auto add = [&](std::int64_t end) {
    const std::int64_t last = options.layers;  // layer 0: the embedding; layer last + 1: the head
    if (end <= begin || end > last + 2)
      throw UsageError(to_string(split) + " is not a valid split of the GPT");
    parts.push_back(
        {std::max<std::int64_t>(begin - 1, 0), std::min(end - 1, last), begin == 0, end == last + 2});
    begin = end;
  };
  for (const std::size_t position : split.positions) add(static_cast<std::int64_t>(position));
  add(options.layers + 2);
  return parts;
}

std::unique_ptr<Model> gpt_model(const GptOptions& options, std::uint64_t seed,
                                 const std::optional<LoraOptions>& lora, const LossOptions& loss) {
  return std::make_unique<GptModel>(options, seed, lora, loss);
}

}  // namespace penstock::train
