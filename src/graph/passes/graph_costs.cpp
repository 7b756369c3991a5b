// Computes FLOPs from the sizes of arguments and results.
#include "graph/passes/graph_costs.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <set>

namespace penstock::graph {
namespace {

const ValueMeta* meta_of(const Graph& graph, const Arg& arg) {
  const ValueId* id = arg.value();
  const Value* value = id ? &graph.value(*id) : nullptr;
  return value && value->meta ? &*value->meta : nullptr;
}

double size_at(const ValueMeta* meta, int from_end) {
  if (!meta || static_cast<int>(meta->sizes.size()) < from_end) return 0;
  return static_cast<double>(meta->sizes[meta->sizes.size() - static_cast<std::size_t>(from_end)].size);
}

double elements(const ValueMeta* meta) {
  return meta ? static_cast<double>(meta->numel()) : 0;
}

//! Each weight matrix of a recurrent operator is used once per time step.
double recurrent_flops(const Graph& graph, const Node& node) {
  const ValueMeta* input = meta_of(graph, node.args[0]);
  if (!input || input->sizes.size() < 2) return 0;
  const double steps = elements(input) / std::max(1.0, size_at(input, 1));
  double weights = 0;
  for (const Arg& arg : node.args) {
    for_each_value(arg, [&](ValueId id) {
      const auto& meta = graph.value(id).meta;
      if (meta && meta->sizes.size() == 2) weights += elements(&*meta);
    });
  }
  return 2 * steps * weights;
}

}  // namespace

double node_flops(const Graph& graph, const Node& node) {
  if (node.kind != Node::Kind::Op) return 0;
  double results = 0;
  const ValueMeta* first = nullptr;
  for_each_result(node, [&](ValueId id) {
    const auto& meta = graph.value(id).meta;
    if (!first && meta) first = &*meta;
    results += elements(meta ? &*meta : nullptr);
  });
  const std::string& name = node.op->operator_name().name;
  const auto arg = [&](std::size_t i) {
    return i < node.args.size() ? meta_of(graph, node.args[i]) : nullptr;
  };
  if (name == "aten::linear") return 2 * results * size_at(arg(1), 1);
  if (name == "aten::matmul" || name == "aten::mm" || name == "aten::bmm")
    return 2 * results * size_at(arg(0), 1);
  if (name == "aten::addmm" || name == "aten::baddbmm") return 2 * results * size_at(arg(1), 1);
  if (name == "aten::scaled_dot_product_attention") return 4 * elements(arg(0)) * size_at(arg(1), 2);
  if (name.find("conv") != std::string::npos && arg(1) && !arg(1)->sizes.empty()) {
    const ValueMeta& weight = *arg(1);
    const bool transposed = name.find("transpose") != std::string::npos;
    const double per_output = elements(&weight) / std::max(1.0, static_cast<double>(weight.sizes[0].size));
    return 2 * (transposed ? elements(arg(0)) : results) * per_output;
  }
  if (name == "aten::lstm" || name == "aten::gru" || name.starts_with("aten::rnn_"))
    return recurrent_flops(graph, node);
  return results;
}

std::uint64_t node_result_bytes(const Graph& graph, const Node& node) {
  std::set<std::optional<std::int32_t>> old;
  for_each_read(node, [&](ValueId id) { old.insert(graph.value(id).storage); });
  std::uint64_t bytes = 0;
  for_each_result(node, [&](ValueId id) {
    const Value& value = graph.value(id);
    if (value.meta && !old.contains(value.storage)) bytes += value.meta->nbytes();
  });
  return bytes;
}

GraphCosts graph_costs(const Graph& graph) {
  GraphCosts costs;
  for (const Slot& slot : graph.slots) {
    const auto& meta = graph.value(slot.value).meta;
    if (slot.kind == Slot::Kind::Parameter && meta) costs.parameter_bytes += meta->nbytes();
  }
  for (const Node& node : graph.nodes) {
    costs.flops += node_flops(graph, node);
    costs.activation_bytes += node_result_bytes(graph, node);
  }
  return costs;
}

}  // namespace penstock::graph
