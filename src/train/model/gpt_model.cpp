// Implements the model interface for the built-in GPT. Splits it between blocks so that the cost of the
// slowest stage is minimal.
#include "base/text.h"
#include "train/lora/gpt_adapters.h"
#include "train/model/archive_loss.h"
#include "train/model/cross_entropy.h"
#include "train/model/gpt_parts.h"
#include "train/model/recomputed_modules.h"
#include "train/model/tensor_parallel_stage.h"

#include <penstock/base/error.h>
#include <penstock/graph/capture.h>
#include <penstock/models/gpt.h>
#include <penstock/plan/partition.h>
#include <penstock/runtime/recompute.h>
#include <penstock/train/model.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <set>

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

// Where a stage starts: 0 is the embedding, then come the blocks, then the norm with the head.
std::size_t position_of(const std::string& path, graph::SplitPoint side, const GptOptions& options) {
  const auto layers = static_cast<std::size_t>(options.layers);
  std::map<std::string, std::size_t> modules{{"token", 0}, {"norm", layers + 1}};
  for (std::size_t i = 0; i < layers; ++i) modules[str_cat("blocks.", i)] = i + 1;
  std::vector<std::string> names;
  for (const auto& [name, position] : modules) names.push_back(name);
  const auto found = modules.find(path);
  const std::size_t position = found == modules.end()                 ? 0
                               : side == graph::SplitPoint::Beginning ? found->second
                                                                      : found->second + 1;
  if (position > 0 && position <= layers + 1) return position;
  throw UsageError("a GPT of " + counted(options.layers, "layer") + " cannot be split at the " +
                       (side == graph::SplitPoint::Beginning ? "beginning" : "end") + " of " + quote(path),
                   {}, did_you_mean(path, names, str_cat("split it at blocks.0 to blocks.", layers - 1)));
}

class GptModel : public Model {
 public:
  GptModel(const GptOptions& options, std::uint64_t seed, const std::optional<LoraOptions>& lora,
           const LossOptions& loss)
      : options_(options), seed_(seed), loss_(loss), plain_(gpt_on_meta(options, std::nullopt)) {
    check_loss_options(LossKind::CrossEntropy, loss, options.vocabulary);
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

  //! Splits the model at these points instead of balancing its stages.
  void give_split(const pipe::SplitPoints& points) {
    std::set<std::size_t> positions;
    for (const auto& [path, side] : points) positions.insert(position_of(path, side, options_));
    given_.positions.assign(positions.begin(), positions.end());
  }
  bool has_given_split() const override { return given_.num_stages() > 1; }

  ModelSplit split(int stages) const override {
    if (has_given_split()) return split_at_points(stages);
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
    return runtime::tensor_loss([smoothing = loss_.label_smoothing, weights = ClassWeights(loss_)](
                                    const at::Tensor& logits, const at::Tensor& target) {
      return cross_entropy(logits, target, weights.on(logits.device()), smoothing);
    });
  }
  runtime::LossReduction reduction() const override {
    return archive_reduction(LossKind::CrossEntropy, loss_);
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
  ModelSplit split_at_points(int stages) const {
    if (given_.num_stages() == stages) return given_;
    throw UsageError(
        str_cat("the split points make ", given_.num_stages(), " stages, but the schedule needs ", stages),
        {},
        str_cat("give ", counted(stages - 1, "split point"),
                ", or none to balance the stages automatically"));
  }

  GptOptions options_;
  std::uint64_t seed_;
  LossOptions loss_;
  Gpt plain_;  // without adapters and memory
  std::optional<Lora> lora_{};
  ModelSplit given_{};  // one stage: balanced
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
                                 const std::optional<LoraOptions>& lora, const LossOptions& loss,
                                 const pipe::SplitPoints& split) {
  auto model = std::make_unique<GptModel>(options, seed, lora, loss);
  model->give_split(split);
  return model;
}

}  // namespace penstock::train
