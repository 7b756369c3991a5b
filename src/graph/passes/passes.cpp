// Liveness, side effects, and the rewrites that depend only on them.
#include "graph/passes/passes.h"

#include "base/text.h"
#include "graph/ir/schema.h"

#include <penstock/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

namespace penstock::graph {
namespace {

std::vector<bool> live_nodes(const Graph& graph) {
  std::vector<bool> live_value(graph.values.size(), false);
  const auto mark = [&](ValueId id) { live_value[id.index()] = true; };
  for (const Arg& output : graph.outputs) for_each_value(output, mark);
  for (const Mutation& mutation : graph.mutations) mark(mutation.from);
  std::vector<bool> live(graph.nodes.size(), false);
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    bool wanted = has_side_effects(node);
    for_each_result(node, [&](ValueId id) { wanted = wanted || live_value[id.index()]; });
    if (!wanted) continue;
    live[i] = true;
    for_each_read(node, mark);
  }
  return live;
}

Arg renumbered(const Arg& arg, const std::vector<ValueId>& numbers) {
  if (const ValueId* id = arg.value()) return {numbers[static_cast<std::size_t>(id->value)]};
  const std::vector<Arg>* items = arg.list();
  if (!items) return arg;
  std::vector<Arg> copy;
  copy.reserve(items->size());
  for (const Arg& item : *items) copy.push_back(renumbered(item, numbers));
  return {std::move(copy)};
}

}  // namespace

std::vector<std::vector<ValueId>> last_uses(const Graph& graph) {
  std::vector<bool> read_later(graph.values.size(), false);
  const auto mark = [&](ValueId id) { read_later[id.index()] = true; };
  for (const Arg& output : graph.outputs) for_each_value(output, mark);
  for (const Mutation& mutation : graph.mutations) mark(mutation.from), mark(mutation.target);
  for (const Slot& slot : graph.slots) mark(slot.value);
  std::vector<std::vector<ValueId>> last(graph.nodes.size());
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    for_each_read(graph.nodes[i], [&](ValueId id) {
      if (read_later[id.index()]) return;
      mark(id);
      last[i].push_back(id);
    });
  }
  return last;
}

Graph remove_dead_nodes(const Graph& graph) {
  const std::vector<bool> live = live_nodes(graph);
  Graph kept = graph;
  kept.nodes.clear();
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (live[i]) kept.nodes.push_back(graph.nodes[i]);
  }
  return compact(kept);
}

Graph compact(const Graph& graph) {
  Graph result = graph;
  result.values.clear();
  std::vector<ValueId> numbers(graph.values.size(), kUnusedValue);
  const auto number = [&](ValueId id) {
    ValueId& to = numbers[id.index()];
    if (to == kUnusedValue) to = result.add_value(graph.value(id));
    return to;
  };
  std::vector<bool> read(graph.values.size(), false);
  const auto mark = [&](ValueId id) { read[id.index()] = true; };
  for (const Node& node : graph.nodes) for_each_read(node, mark);
  for (const Arg& output : graph.outputs) for_each_value(output, mark);
  for (const Mutation& mutation : graph.mutations) mark(mutation.from);

  for (Slot& slot : result.slots) slot.value = number(slot.value);
  for (GraphInput& input : result.inputs) input.value = number(input.value);
  for (Node& node : result.nodes) {
    for (Arg& arg : node.args) arg = renumbered(arg, numbers);
    for (Result& item : node.results) {
      for (ValueId& id : item.ids) {
        if (id != kUnusedValue) id = read[id.index()] ? number(id) : kUnusedValue;
      }
    }
  }
  for (Arg& output : result.outputs) output = renumbered(output, numbers);
  for (Mutation& mutation : result.mutations) mutation = {number(mutation.target), number(mutation.from)};
  return result;
}

void check_graph(const Graph& graph) {
  std::vector<bool> defined(graph.values.size(), false);
  const auto check_id = [&](ValueId id, const std::string& where) {
    if (id.value < 0 || id.index() >= graph.values.size()) {
      throw UsageError(
          str_cat("the graph refers to value ", id.value, ", which does not exist (", where, ")"));
    }
  };
  const auto make = [&](ValueId id, const std::string& where) {
    check_id(id, where);
    if (defined[id.index()]) {
      throw UsageError("%" + graph.value(id).name + " is defined twice (" + where + ")");
    }
    defined[id.index()] = true;
  };
  const auto need = [&](ValueId id, const std::string& where) {
    check_id(id, where);
    if (!defined[id.index()]) {
      throw UsageError("%" + graph.value(id).name + " is read before it is defined (" + where + ")");
    }
  };
  for (const Slot& slot : graph.slots) make(slot.value, "slot");
  for (const GraphInput& input : graph.inputs) make(input.value, "input");
  for (const Node& node : graph.nodes) {
    const std::string where = node.name() + (node.module.empty() ? "" : " in " + node.module);
    for_each_read(node, [&](ValueId id) { need(id, where); });
    if (node.kind == Node::Kind::Op) check_arguments(graph, node);
    for_each_result(node, [&](ValueId id) { make(id, where); });
  }
  for (const Arg& output : graph.outputs) for_each_value(output, [&](ValueId id) { need(id, "output"); });
  for (const Mutation& mutation : graph.mutations)
    need(mutation.target, "mutation"), need(mutation.from, "mutation");
  if (graph.outputs.size() != graph.output_structure.num_leaves() ||
      graph.inputs.size() != graph.input_structure.num_leaves()) {
    throw UsageError(str_cat("the graph has ", graph.inputs.size(), " inputs and ", graph.outputs.size(),
                             " outputs, but their structures have ", graph.input_structure.num_leaves(),
                             " and ", graph.output_structure.num_leaves(), " leaves"),
                     {},
                     "set input_structure and output_structure to trees with one leaf per input and output, "
                     "or export the model again");
  }
}

}  // namespace penstock::graph
