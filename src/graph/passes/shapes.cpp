// Propagates sizes and dtypes through a graph by running each operator on meta tensors.
#include "base/text.h"
#include "graph/ir/meta.h"
#include "graph/ir/modes.h"
#include "graph/ir/scalars.h"
#include "graph/ir/schema.h"
#include "graph/passes/passes.h"

#include <penstock/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

namespace penstock::graph {
namespace {

using c10::IValue;

class Shapes {
 public:
  explicit Shapes(const Graph& graph) : graph_(graph), values_(graph.values.size()) {}

  Graph run(const std::vector<ValueMeta>& inputs) {
    if (!inputs.empty() && inputs.size() != graph_.inputs.size()) {
      throw UsageError(str_cat("the graph has ", graph_.inputs.size(), " inputs, but the number of sizes is ",
                               inputs.size()));
    }
    for (const Slot& slot : graph_.slots)
      at(slot.value) = tensor_of(slot.value, graph_.value(slot.value).meta);
    for (std::size_t i = 0; i < graph_.inputs.size(); ++i) {
      const GraphInput& input = graph_.inputs[i];
      if (input.constant) {
        at(input.value) = *input.constant;
      } else if (graph_.value(input.value).type == ValueType::Tensor) {
        at(input.value) = tensor_of(input.value, inputs.empty() ? graph_.value(input.value).meta : inputs[i]);
      }
    }
    const c10::AutoGradMode no_grad(false);
    for (const Node& node : graph_.nodes) step(node);
    return std::move(graph_);
  }

 private:
  IValue& at(ValueId id) { return values_[id.index()]; }

  static std::string location(const Node& node) {
    return node.name() + (node.module.empty() ? "" : " of module " + node.module);
  }

  IValue tensor_of(ValueId id, const std::optional<ValueMeta>& meta) {
    if (!meta) return {};
    std::vector<std::int64_t> sizes;
    for (const Dim& dim : meta->sizes) sizes.push_back(dim.size);
    IValue tensor = at::empty(sizes, at::device(at::kMeta).dtype(meta->dtype));
    note(id, tensor.toTensor());
    return tensor;
  }

  //! Stores the inferred metadata. Keeps existing size expressions.
  void note(ValueId id, const at::Tensor& tensor) {
    std::optional<ValueMeta>& meta = graph_.value(id).meta;
    ValueMeta found{.dtype = tensor.scalar_type()};
    for (std::int64_t d = 0; d < tensor.dim(); ++d) {
      const bool same = meta && meta->sizes.size() == static_cast<std::size_t>(tensor.dim());
      found.sizes.push_back({.size = tensor.size(d),
                             .expression = same ? meta->sizes[static_cast<std::size_t>(d)].expression : ""});
    }
    meta = std::move(found);
  }

  IValue argument(const Node& node, const Arg& arg, const c10::Type* type) {
    if (const ValueId* id = arg.value()) {
      const IValue& value = at(*id);
      if (value.isNone()) {
        throw UsageError("the sizes of %" + graph_.value(*id).name + " are unknown", {.op = location(node)});
      }
      return type && is_tensor_type(*type) && !value.isTensor() ? wrapped_number(value) : value;
    }
    if (const IValue* constant = arg.constant()) return *constant;
    const c10::TypePtr element = type ? without_optional(*type).containedType(0) : c10::AnyType::get();
    c10::impl::GenericList list(element);
    for (const Arg& item : *arg.list()) list.push_back(argument(node, item, element.get()));
    return list;
  }

  void step(const Node& node) {
    if (node.kind == Node::Kind::Split) return;
    torch::jit::Stack stack;
    for (std::size_t i = 0; i < node.args.size(); ++i) {
      const c10::Type* type = node.op ? node.op->schema().arguments()[i].type().get() : nullptr;
      stack.push_back(argument(node, node.args[i], type));
    }
    if (node.kind == Node::Kind::Scalar) {
      at(node.results[0].ids[0]) = evaluate(node.scalar, stack);
      return;
    }
    try {
      call_without_memory(*node.op, stack);
    } catch (const c10::Error& error) {
      throw ShapeError(error.what_without_backtrace(), {.op = location(node)});
    } catch (const UsageError& error) {
      throw UsageError("sizes depend on tensor elements: " + error.message(), {.op = location(node)},
                       error.hint());
    }
    for (std::size_t r = 0; r < node.results.size(); ++r) {
      const Result& result = node.results[r];
      if (!result.is_list) {
        store(node, result.ids[0], stack[r]);
        continue;
      }
      const auto items = stack[r].toListRef();
      for (std::size_t k = 0; k < result.ids.size() && k < items.size(); ++k)
        store(node, result.ids[k], items[k]);
    }
  }

  void store(const Node& node, ValueId id, const IValue& value) {
    if (id == kUnusedValue) return;
    at(id) = value;
    if (!value.isTensor() || !value.toTensor().defined()) return;
    at::Tensor tensor = value.toTensor();
    // Autocast ignores meta tensors, so keep the recorded dtype inside an autocast region.
    const auto& known = graph_.value(id).meta;
    if (!node.mode.autocast.empty() && known) tensor = tensor.to(known->dtype);
    at(id) = tensor;
    note(id, tensor);
  }

  Graph graph_;
  std::vector<IValue> values_;
};

}  // namespace

Graph propagate_shapes(const Graph& graph, const std::vector<ValueMeta>& inputs) {
  return Shapes(graph).run(inputs);
}

}  // namespace penstock::graph
