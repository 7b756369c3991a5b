// Implements the model interface for the built-in GPT. Splits it between blocks so that the cost of the
// slowest stage is minimal.
#include "train/model/tensor_parallel.h"

#include <penstock/base/error.h>
#include <penstock/models/gpt.h>
#include <penstock/parallel/loss_parallel.h>
#include <penstock/plan/partition.h>
#include <penstock/tensor/dtensor.h>
#include <penstock/train/model.h>

#include <torch/nn/functional/loss.h>

#include <cstdio>

namespace penstock::train {
namespace {

using models::Gpt;
using models::GptOptions;
using models::GptPart;

// Multiplications per token. A backward costs twice a forward for every layer.
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
  for (std::int64_t i = 0; i < options.layers; ++i)
    layers.push_back(layer_of("blocks." + std::to_string(i), block));
  layers.push_back(layer_of("head", width * options.vocabulary));
  return layers;
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target) {
  const auto mean = [&] {
    return torch::nn::functional::cross_entropy(logits.to(at::kFloat).flatten(0, -2), target.flatten());
  };
  if (!tensor::is_dtensor(logits)) return mean();
  const parallel::LossParallel keep;  // logits stay sharded: only a few numbers per token are sent
  return tensor::full_tensor(mean());
}

class GptModel : public Model {
 public:
  GptModel(const GptOptions& options, std::uint64_t seed) : options_(options), seed_(seed) {}

  void cut(int stages) override {
    const std::vector<plan::Layer> layers = layers_of(options_);
    if (stages > static_cast<int>(layers.size()))
      throw UsageError("a GPT of " + std::to_string(options_.layers) + " layers can be split into at most " +
                           std::to_string(layers.size()) + " stages, not " + std::to_string(stages),
                       {}, "use more layers, or fewer pipeline ranks or stages per rank");
    plan::PartitionOptions place;
    for (int s = 0; s < stages; ++s) place.rank_of_stage.emplace_back(s);
    const std::vector<int> first = partition_layers(layers, place)->first_layer;
    parts_.clear();
    for (std::size_t s = 0; s < static_cast<std::size_t>(stages); ++s) {
      const std::int64_t from = first[s], to = first[s + 1],
                         last = options_.layers;  // layer 0 embeds, layer last + 1 predicts
      parts_.push_back(
          {std::max<std::int64_t>(from - 1, 0), std::min(to - 1, last), from == 0, to == last + 2});
    }
    modules_.clear();
  }

  void check_tensor_ranks(int ranks) const override {
    if (options_.heads % ranks != 0)
      throw UsageError(std::to_string(options_.heads) + " heads cannot be divided among " +
                           std::to_string(ranks) + " tensor-parallel ranks",
                       {}, "use a number of tensor-parallel ranks that divides the number of heads");
    if (options_.dropout > 0)
      throw UsageError("dropout is not supported in attention that is sharded by heads", {},
                       "set dropout to 0, or use 1 tensor-parallel rank");
  }

  void spread(const comm::Group& tensors) override {
    check_tensor_ranks(tensors.size());
    tensors_ = tensors;
  }

  std::shared_ptr<runtime::StageModule> stage(int stage) override {
    Gpt module(options_, parts_.at(static_cast<std::size_t>(stage)));
    models::initialise(*module, options_, seed_);
    modules_.push_back(module);
    if (!tensors_) return runtime::make_stage_module(module);
    const runtime::StageFunction forward = [model = module.ptr()](const value::Args& args,
                                                                  const value::Kwargs&) {
      return runtime::StageResult(model->forward(args.at(0).toTensor()));
    };
    const bool last = parts_.at(static_cast<std::size_t>(stage)).predicts;
    return tensor_parallel_stage(module.ptr(), forward, *tensors_,
                                 last ? StageOutput::AsItIs : StageOutput::Whole);
  }

  void set_training(bool on) override {
    for (Gpt& module : modules_) module->train(on);
  }
  std::vector<runtime::SkipValue> skips() const override { return {}; }
  std::vector<runtime::SharedParameter> shared() const override {
    if (!options_.tied || parts_.size() < 2) return {};
    const StageId last(static_cast<std::int64_t>(parts_.size()) - 1);
    return {{{StageId(0), "token.weight"}, {last, "token.weight"}}};
  }
  std::vector<checkpoint::Piece> whole_state() const override {
    std::vector<checkpoint::Piece> pieces;
    const Gpt whole(options_);
    for (const auto& item : whole->named_parameters())
      pieces.push_back(
          checkpoint::full_piece(item.key(), item.value().to(at::kMeta).detach().set_requires_grad(true)));
    for (const auto& item : whole->named_buffers())
      pieces.push_back(full_piece(item.key(), item.value().to(at::kMeta), checkpoint::PieceKind::Buffer));
    return pieces;
  }
  runtime::LossFunction loss() const override { return runtime::tensor_loss(cross_entropy); }
  runtime::LossReduction reduction() const override {
    return runtime::LossReduction::mean_over_valid_labels();
  }
  std::string describe() const override {
    const auto count = static_cast<double>(models::parameter_count(*Gpt(options_)));
    char text[160];
    std::snprintf(text, sizeof text, "GPT of %lld layers, width %lld, %lld heads, %.2f M parameters",
                  static_cast<long long>(options_.layers), static_cast<long long>(options_.width),
                  static_cast<long long>(options_.heads), count / 1e6);
    return text;
  }
  void check_rows(const std::vector<std::int64_t>&) const override {}

 private:
  GptOptions options_;
  std::uint64_t seed_;
  std::vector<GptPart> parts_;
  std::vector<Gpt> modules_;
  std::optional<comm::Group> tensors_;
};

}  // namespace

void Model::check_tensor_ranks(int) const {
  throw UsageError("this model does not support tensor parallelism", {},
                   "use 1 tensor-parallel rank, with more pipeline ranks or replicas");
}

void Model::spread(const comm::Group& tensors) {
  check_tensor_ranks(tensors.size());
}

std::unique_ptr<Model> gpt_model(const GptOptions& options, std::uint64_t seed) {
  return std::make_unique<GptModel>(options, seed);
}

}  // namespace penstock::train
