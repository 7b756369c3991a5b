// Converts a graph to another floating-point dtype, as `Module::to` does for a module in Python.
#include "graph/ir/enums.h"
#include "graph/passes/passes.h"

namespace penstock::graph {
namespace {

bool is_dtype(const c10::Argument& argument, const c10::IValue* value, at::ScalarType dtype) {
  return enum_kind(argument) == EnumKind::Dtype && value != nullptr && value->isInt() &&
         value->toInt() == static_cast<std::int64_t>(dtype);
}

}  // namespace

std::set<at::ScalarType> reduced_parameter_dtypes(const Graph& graph) {
  std::set<at::ScalarType> dtypes;
  for (const Slot& slot : graph.slots) {
    const auto& meta = graph.value(slot.value).meta;
    if (slot.kind == Slot::Kind::Parameter && meta && at::isReducedFloatingType(meta->dtype))
      dtypes.insert(meta->dtype);
  }
  return dtypes;
}

Graph convert_dtype(const Graph& graph, at::ScalarType from, at::ScalarType to) {
  Graph result = graph;
  for (Value& value : result.values)
    if (value.meta && value.meta->dtype == from) value.meta->dtype = to;
  for (Node& node : result.nodes) {
    if (node.kind != Node::Kind::Op) continue;
    const auto& arguments = node.op->schema().arguments();
    for (std::size_t i = 0; i < node.args.size(); ++i)
      if (is_dtype(arguments[i], node.args[i].constant(), from))
        node.args[i] = {c10::IValue(static_cast<std::int64_t>(to))};
  }
  return result;
}

}  // namespace penstock::graph
