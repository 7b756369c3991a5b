// An exported language model over ranks: each token is a forward pass of the pipeline over the last tokens
// that fit into the model.
#include "base/text.h"
#include "commands/language_model.h"
#include "commands/trained_weights.h"
#include "train/preflight/document_inputs.h"
#include "train/preflight/model_checks.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_module.h>
#include <penstock/pipe/pipe.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/schedule/generate.h>
#include <penstock/value/tree.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace penstock::tool {
namespace {

constexpr const char* kInputHint =
    "export a model that takes tokens, and if it needs them position_ids and labels (integers of shape "
    "[batch, time]) and attention_mask: [batch, time], or bool or floating-point numbers of shape [batch, "
    "time, time] or [batch, 1, time, time]";

constexpr std::int64_t kIgnoredToken = -100;  // a label that losses leave out

struct LengthRange {
  std::int64_t min = 1, max = std::numeric_limits<std::int64_t>::max();
};

LengthRange length_range(const graph::Graph& graph, const graph::Dim& dim) {
  if (dim.expression.empty()) return {dim.size, dim.size};
  LengthRange range;
  for (const graph::SymbolRange& symbol : graph.symbols) {
    if (symbol.symbol != dim.expression) continue;
    range.min = std::max(range.min, symbol.min.value_or(1));
    range.max = symbol.max.value_or(range.max);
  }
  return range;
}

//! What generation supplies for an input.
enum class InputContent { Constant, Tokens, Positions, Mask, Labels };

InputContent content_of(const graph::Graph& graph, const graph::GraphInput& input) {
  if (input.constant) return InputContent::Constant;
  const std::string& name = graph.value(input.value).name;
  if (name == kPositionIds) return InputContent::Positions;
  if (name == kLabelInput) return InputContent::Labels;
  return name == kAttentionMask ? InputContent::Mask : InputContent::Tokens;
}

//! Of `rows` rows of as many tokens as `length`, of which each attends to itself and to previous ones. A mask
//! of shape [batch, length] says which tokens are padding: none.
at::Tensor full_mask(const graph::ValueMeta& meta, std::int64_t rows, std::int64_t length) {
  if (meta.sizes.size() == 2) return at::ones({rows, length}, meta.dtype);
  const at::Tensor causal = at::ones({length, length}, at::kBool).tril();
  at::Tensor mask = causal;
  if (at::isFloatingType(meta.dtype))
    mask = at::zeros({length, length}, meta.dtype)
               .masked_fill(causal.logical_not(), -std::numeric_limits<double>::infinity());
  std::vector<std::int64_t> repeats(meta.sizes.size(), 1);
  repeats[0] = rows;
  return mask.repeat(repeats);
}

//! How a model that maps tokens [batch, time] to logits [batch, time, vocabulary] takes and returns them.
class TokenModel {
 public:
  TokenModel(graph::Graph graph, const std::string& file) : graph_(std::move(graph)) {
    const std::vector<graph::GraphInput>& inputs = graph_.inputs;
    for (const graph::GraphInput& input : inputs) contents_.push_back(content_of(graph_, input));
    const auto input = std::find(contents_.begin(), contents_.end(), InputContent::Tokens);
    const auto count = std::count(input, contents_.end(), InputContent::Tokens);
    if (count != 1)
      throw UsageError("generate needs a model with one tensor of tokens, [batch, time]; " +
                           quote(file, 200) + " has " + counted(count, "input") +
                           " besides position_ids, attention_mask and labels",
                       {}, kInputHint);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (!is_known_layout(i))
        throw UsageError("generate supplies tokens to the model, but cannot supply its input " +
                             quote(graph_.value(inputs[i].value).name),
                         {}, kInputHint);
    const auto& meta = meta_of(static_cast<std::size_t>(input - contents_.begin()));
    batch_ = length_range(graph_, meta->sizes[0]).min;
    time_ = length_range(graph_, meta->sizes[1]);
    const std::vector<std::string> paths = graph_.output_paths();
    const auto logits = std::find(paths.begin(), paths.end(), "output.logits");
    output_ = logits == paths.end() ? 0 : static_cast<std::size_t>(logits - paths.begin());
    const bool has_labels =
        std::find(contents_.begin(), contents_.end(), InputContent::Labels) != contents_.end();
    if (has_labels && logits == paths.end())
      throw UsageError("generate needs the logits of a model, but " + quote(file, 200) +
                           " takes labels and has no output named logits",
                       {}, "export a model that returns its logits, too, under this name");
  }

  const graph::Graph& graph() const { return graph_; }

  struct Window {
    Tokens tokens;          //!< the last tokens that fit, padded to the smallest length of the model
    std::int64_t last = 0;  //!< the index of the last token of the text
    bool is_padded() const { return last + 1 < static_cast<std::int64_t>(tokens.size()); }
  };
  Window window_of(const Tokens& text) const {
    const auto kept = static_cast<std::ptrdiff_t>(
        std::min(text.size(), static_cast<std::size_t>(std::max<std::int64_t>(time_.max, 1))));
    Window window{Tokens(text.end() - kept, text.end()), kept - 1};
    if (kept < time_.min) window.tokens.resize(static_cast<std::size_t>(time_.min), window.tokens.back());
    return window;
  }

  //! The inputs of the graph. Throws UsageError if the model does not take these tokens.
  std::vector<c10::IValue> leaves_of(const Tokens& window) const {
    std::vector<c10::IValue> leaves;
    for (std::size_t i = 0; i < contents_.size(); ++i)
      leaves.push_back(graph_.inputs[i].constant.value_or(c10::IValue(supplied(i, window))));
    check_tokens(graph_, leaves);
    check_inputs(graph_, leaves);
    return leaves;
  }

  //! The logits of the first row.
  at::Tensor logits_of(const c10::IValue& output, std::size_t length) const {
    const c10::IValue leaf = value::flatten(output).leaves.at(output_);
    const at::Tensor logits = leaf.isTensor() ? leaf.toTensor() : at::Tensor();
    if (!logits.defined() || logits.dim() != 3 || logits.size(1) != static_cast<std::int64_t>(length))
      throw UsageError("the output " + quote(graph_.output_paths()[output_]) +
                           " does not have the shape [batch, time, vocabulary] of logits",
                       {}, "export a model with such an output, first or named logits");
    return logits[0];
  }

 private:
  const std::optional<graph::ValueMeta>& meta_of(std::size_t input) const {
    return graph_.value(graph_.inputs[input].value).meta;
  }

  //! Whether the input has a layout that `supplied` can make.
  bool is_known_layout(std::size_t input) const {
    if (contents_[input] == InputContent::Constant) return true;
    const auto& meta = meta_of(input);
    if (!meta) return false;
    const std::size_t dims = meta->sizes.size();
    if (contents_[input] != InputContent::Mask) return dims == 2 && is_integer(meta->dtype);
    return dims == 2 || ((dims == 3 || dims == 4) && !is_integer(meta->dtype));
  }

  //! The value of an input that is not constant.
  at::Tensor supplied(std::size_t input, const Tokens& window) const {
    const auto length = static_cast<std::int64_t>(window.size());
    const auto& meta = meta_of(input);
    switch (contents_[input]) {
      case InputContent::Constant:
        return {};
      case InputContent::Tokens:
        return at::tensor(window, at::kLong).to(meta->dtype).unsqueeze(0).repeat({batch_, 1});
      case InputContent::Positions:
        return at::arange(length, at::kLong).to(meta->dtype).unsqueeze(0).repeat({batch_, 1});
      case InputContent::Mask:
        return full_mask(*meta, batch_, length);
      case InputContent::Labels:  // the logits do not depend on them
        return at::full({batch_, length}, kIgnoredToken, meta->dtype);
    }
    return {};
  }

  graph::Graph graph_;
  std::vector<InputContent> contents_;  // by input
  std::size_t output_ = 0;
  std::int64_t batch_ = 1;
  LengthRange time_;
};

pipe::Pipe split_model(const OpenedModel& opened, int ranks) {
  return {opened.graph, opened.source, pipe::Balanced{ranks, pipe::BalanceBy::Parameters}};
}

class StagedExport : public LanguageModel {
 public:
  StagedExport(const OpenedModel& opened, const std::string& file, const comm::World& world)
      : model_(opened.graph, file),
        device_(world.device()),
        rank_(world.rank().value),
        last_rank_(world.size() - 1),
        pipe_(split_model(opened, world.size())) {
    const runtime::PipelineStage stage = pipe_.build_stage(StageId(rank_), device_, world.group());
    const schedule::ScheduleShape shape{world.size(), 1, /*microbatches=*/1};
    pipeline_ = std::make_unique<runtime::PipelineSchedule>(
        std::vector{stage}, make_schedule(schedule::ScheduleKind::GPipe, shape), pipe_.pipeline_options());
  }

  at::Tensor next_logits(const Tokens& text) override {
    const TokenModel::Window window = model_.window_of(text);
    const at::Tensor all = run(window.tokens);
    const at::Tensor logits = all.defined() ? all[window.last] : all;
    if (window.is_padded() && !checked_) check_causal(window, logits);
    return logits;
  }

 private:
  //! The logits of all tokens, on the last rank.
  at::Tensor run(const Tokens& window) {
    std::vector<c10::IValue> leaves = model_.leaves_of(window);
    for (c10::IValue& leaf : leaves)
      leaf = value::map_tensors(leaf, [&](const at::Tensor& tensor) { return tensor.to(device_); });
    const c10::IValue tree = value::unflatten(leaves, model_.graph().input_structure);
    value::Args args;
    value::Kwargs kwargs;
    if (rank_ == 0) args = tree.toTupleRef().elements()[0].toTupleRef().elements().vec();
    for (const auto& entry : tree.toTupleRef().elements()[1].toGenericDict())
      kwargs.insert_or_assign(entry.key().toStringRef(), entry.value());
    const runtime::StepResult result = pipeline_->eval(args, {}, {.kwargs = kwargs});
    return rank_ == last_rank_ ? model_.logits_of(result.outputs, window.size()) : at::Tensor();
  }

  //! Padding after the last token must not change its logits.
  void check_causal(const TokenModel::Window& window, const at::Tensor& logits) {
    checked_ = true;
    Tokens changed = window.tokens;
    for (auto i = static_cast<std::size_t>(window.last) + 1; i < changed.size(); ++i)
      changed[i] = changed[i] == 0 ? 1 : 0;
    const at::Tensor other = run(changed);
    if (!other.defined() || at::allclose(other[window.last], logits, 1e-4, 1e-5)) return;
    throw UsageError("the model is not causal: its logits depend on later tokens", {},
                     "export a causal model, or one with a dynamic time dim");
  }

  TokenModel model_;
  at::Device device_;
  int rank_, last_rank_;
  pipe::Pipe pipe_;
  std::unique_ptr<runtime::PipelineSchedule> pipeline_;
  bool checked_ = false;
};

}  // namespace

std::unique_ptr<LanguageModel> staged_export(const std::string& model, const std::string& checkpoint,
                                             const std::vector<checkpoint::RenameRule>& renames,
                                             const comm::World& world) {
  return std::make_unique<StagedExport>(open_with_weights(model, checkpoint, "", renames), model, world);
}

void check_staged_export(const std::string& model, const std::string& checkpoint,
                         const std::vector<checkpoint::RenameRule>& renames, int ranks,
                         const Tokens& prompt) {
  const OpenedModel opened = open_with_weights(model, checkpoint, "", renames);
  const TokenModel tokens(opened.graph, model);
  tokens.leaves_of(tokens.window_of(prompt).tokens);
  split_model(opened, ranks);
}

}  // namespace penstock::tool
