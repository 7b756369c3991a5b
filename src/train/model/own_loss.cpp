// Decides from the graph which labels the loss of a model is a mean over.
#include "train/model/own_loss.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>

namespace penstock::train {
namespace {

// The inputs of integers, which may be labels.
std::vector<const graph::Value*> integer_inputs(const graph::Graph& graph) {
  std::vector<const graph::Value*> inputs;
  for (const graph::GraphInput& input : graph.inputs) {
    const graph::Value& value = graph.value(input.value);
    if (input.constant || !value.meta) continue;
    if (at::isIntegralType(value.meta->dtype, /*includeBool=*/false)) inputs.push_back(&value);
  }
  return inputs;
}

// The input with the labels, if they are integers; null if there are none.
const graph::Value* find_labels(const graph::Graph& graph, const std::string& name) {
  const auto inputs = integer_inputs(graph);
  const auto found =
      std::find_if(inputs.begin(), inputs.end(), [&](const auto* input) { return input->name == name; });
  return found == inputs.end() ? nullptr : *found;
}

// Whether the first result has the labels of the first argument at the same indices, possibly with more after
// them.
bool keeps_labels(const std::string& op) {
  constexpr std::array kept{"aten::to.",        "aten::_to_copy", "aten::contiguous",
                            "aten::clone",      "aten::alias",    "aten::detach",
                            "aten::lift_fresh", "aten::pad",      "aten::constant_pad_nd"};
  return std::any_of(kept.begin(), kept.end(), [&](const char* start) { return op.starts_with(start); });
}

// Whether the first result has only elements of the first argument.
bool keeps_elements(const std::string& op) {
  constexpr std::array kept{"aten::view",    "aten::reshape",   "aten::_unsafe_view",
                            "aten::flatten", "aten::squeeze",   "aten::unsqueeze",
                            "aten::slice.",  "aten::transpose", "aten::permute"};
  return keeps_labels(op) ||
         std::any_of(kept.begin(), kept.end(), [&](const char* start) { return op.starts_with(start); });
}

// The values with elements of an input of the graph.
std::set<graph::ValueId> values_of(const graph::Graph& graph, const graph::Value& input) {
  std::set<graph::ValueId> values;
  for (const graph::GraphInput& one : graph.inputs)
    if (&graph.value(one.value) == &input) values.insert(one.value);
  for (const graph::Node& node : graph.nodes) {
    if (node.kind != graph::Node::Kind::Op || node.args.empty() || !keeps_elements(node.name())) continue;
    const graph::ValueId* const source = node.args[0].value();
    if (source != nullptr && values.contains(*source))
      graph::for_each_result(node, [&](graph::ValueId id) { values.insert(id); });
  }
  return values;
}

// Whether such an operator takes elements of the input as its second argument.
bool is_second_argument(const graph::Graph& graph, const graph::Value& input,
                        std::initializer_list<const char*> operators) {
  const std::set<graph::ValueId> values = values_of(graph, input);
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const graph::Node& node) {
    if (node.kind != graph::Node::Kind::Op || node.args.size() < 2) return false;
    const graph::ValueId* const second = node.args[1].value();
    return second != nullptr && values.contains(*second) &&
           std::any_of(operators.begin(), operators.end(),
                       [&](const char* start) { return node.name().starts_with(start); });
  });
}

// Whether the input has tokens. Models may also compare their logits with these, but no token is ignored.
bool has_tokens(const graph::Graph& graph, const graph::Value& input) {
  return is_second_argument(graph, input, {"aten::embedding"});
}

// Whether a loss of the graph takes the input as its labels, or the name says that it has labels.
bool looks_like_labels(const graph::Graph& graph, const graph::Value& input) {
  if (has_tokens(graph, input)) return false;
  const std::string name = to_lower(input.name);
  return name.find("label") != std::string::npos || name.find("target") != std::string::npos ||
         is_second_argument(graph, input, {"aten::cross_entropy_loss", "aten::nll_loss"});
}

// Throws UsageError if the mean is likely to be one over labels whose input has another name.
void refuse_other_labels(const graph::Graph& graph) {
  for (const graph::Value* const input : integer_inputs(graph)) {
    if (!looks_like_labels(graph, *input)) continue;
    throw UsageError("the model computes its own loss, and its input " + quote(input->name) +
                         " looks like labels, but is not named " + quote(kLabels),
                     {},
                     "if the loss is a mean over the labels other than -100, set labels to " +
                         quote(input->name) + "; otherwise set loss_mean to rows");
  }
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

OwnLoss resolve_own_loss(const graph::Graph& graph, LossMean mean, const std::optional<std::string>& labels) {
  if (mean == LossMean::Rows && labels)
    throw UsageError("the labels " + quote(*labels) + " do not apply to a loss that is a mean over rows", {},
                     "leave them out, or use a mean over labels");
  if (mean == LossMean::Rows) return {};
  const std::string name = labels.value_or(kLabels);
  const graph::Value* const input = find_labels(graph, name);
  if (input == nullptr && (mean != LossMean::Auto || labels))
    throw UsageError(str_cat("the loss cannot be a mean over ",
                             to_string(mean == LossMean::Auto ? LossMean::Labels : mean),
                             ", because the model has no input ", quote(name), " of integers"),
                     {}, "use a mean over rows, or name the input of the labels");
  if (input == nullptr) {
    refuse_other_labels(graph);
    return {};
  }
  if (has_tokens(graph, *input))
    throw UsageError("the input " + quote(name) + " has tokens of an embedding, of which none can be ignored",
                     {}, "use a mean over rows, or export the model with labels as an input of their own");
  if (mean == LossMean::Auto) mean = skips_first(graph, *input) ? LossMean::NextLabels : LossMean::Labels;
  if (mean == LossMean::NextLabels && input->meta->sizes.size() < 2)
    throw UsageError(
        "the loss cannot be a mean over next_labels, because " + quote(name) + " has one label per row", {},
        "use labels");
  return {mean, LabelInput{name, mean == LossMean::NextLabels}};
}

}  // namespace penstock::train
