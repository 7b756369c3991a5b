// Decides from the graph which labels the loss of a model is a mean over.
#include "train/model/own_loss.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <set>

namespace penstock::train {
namespace {

constexpr const char* kLabels = "labels";

// The input with the labels, if they are integers; null if there are none.
const graph::Value* find_labels(const graph::Graph& graph) {
  for (const graph::GraphInput& input : graph.inputs) {
    const graph::Value& value = graph.value(input.value);
    if (value.name != kLabels || input.constant || !value.meta) continue;
    return at::isIntegralType(value.meta->dtype, /*includeBool=*/false) ? &value : nullptr;
  }
  return nullptr;
}

// Whether the first result has the labels of the first argument at the same indices, possibly with more after
// them.
bool keeps_labels(const std::string& op) {
  constexpr std::array kept{"aten::to.",        "aten::_to_copy", "aten::contiguous",
                            "aten::clone",      "aten::alias",    "aten::detach",
                            "aten::lift_fresh", "aten::pad",      "aten::constant_pad_nd"};
  return std::any_of(kept.begin(), kept.end(), [&](const char* start) { return op.starts_with(start); });
}

// The integer argument at an index, if it is a constant.
std::optional<std::int64_t> integer(const graph::Node& node, std::size_t index) {
  const c10::IValue* const value = index < node.args.size() ? node.args[index].constant() : nullptr;
  return value != nullptr && value->isInt() ? std::optional(value->toInt()) : std::nullopt;
}

// Whether the graph takes the labels from index 1 of their last dim on, as models do that predict the next
// token.
bool skips_first(const graph::Graph& graph, const graph::Value& labels) {
  const auto dims = static_cast<std::int64_t>(labels.meta->sizes.size());
  if (dims < 2) return false;
  std::set<graph::ValueId> same;
  for (const graph::GraphInput& input : graph.inputs)
    if (&graph.value(input.value) == &labels) same.insert(input.value);
  for (const graph::Node& node : graph.nodes) {
    const graph::ValueId* const source = node.args.empty() ? nullptr : node.args[0].value();
    if (node.kind != graph::Node::Kind::Op || source == nullptr || !same.contains(*source)) continue;
    bool kept = keeps_labels(node.name());
    if (node.name() == "aten::slice.Tensor") {
      const std::int64_t dim = integer(node, 1).value_or(0), start = integer(node, 2).value_or(0);
      if ((dim == dims - 1 || dim == -1) && start == 1) return true;
      kept = start == 0;
    }
    if (kept) graph::for_each_result(node, [&](graph::ValueId id) { same.insert(id); });
  }
  return false;
}

}  // namespace

LossMean resolve_loss_mean(const graph::Graph& graph, LossMean mean) {
  if (mean == LossMean::Rows) return mean;
  const graph::Value* const labels = find_labels(graph);
  if (mean == LossMean::Auto) {
    if (labels == nullptr) return LossMean::Rows;
    return skips_first(graph, *labels) ? LossMean::NextLabels : LossMean::Labels;
  }
  if (labels == nullptr)
    throw UsageError(str_cat("the loss cannot be a mean over ", to_string(mean),
                             ", because the model has no input 'labels' of integers"),
                     {}, "use a mean over rows, or export the model with an input of this name");
  if (mean == LossMean::NextLabels && labels->meta->sizes.size() < 2)
    throw UsageError("the loss cannot be a mean over next_labels, because 'labels' has one label per row", {},
                     "use labels");
  return mean;
}

std::optional<LabelInput> label_input(LossMean mean) {
  if (mean == LossMean::Rows) return std::nullopt;
  return LabelInput{kLabels, mean == LossMean::NextLabels};
}

}  // namespace penstock::train
