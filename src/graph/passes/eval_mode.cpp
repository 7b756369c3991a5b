// Switches operators to evaluation mode.
#include "graph/passes/eval_mode.h"

#include "graph/passes/passes.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace penstock::graph {
namespace {

// Batch norm updates num_batches_tracked only in training mode.
const Slot* batch_counter(const Graph& graph, ValueId id) {
  const Slot* slot = graph.find_slot(id);
  const bool counts =
      slot && slot->kind == Slot::Kind::Buffer && slot->names[0].ends_with("num_batches_tracked");
  return counts ? slot : nullptr;
}

bool updates_counter(const Graph& graph, const Node& node) {
  if (node.kind != Node::Kind::Op || node.op->operator_name().name != "aten::add_") return false;
  const ValueId* self = node.args[0].value();
  return self && batch_counter(graph, *self);
}

void clear_training_flags(Node& node) {
  const auto& arguments = node.op->schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i].name();
    const c10::IValue* flag = node.args[i].constant();
    if ((name == "train" || name == "training") && flag && flag->isBool())
      node.args[i] = {c10::IValue(false)};
    // Attention has no training flag: callers pass dropout_p = 0 in eval mode.
    if (name == "dropout_p" && flag && flag->isDouble()) node.args[i] = {c10::IValue(0.0)};
    // In eval mode, instance norm uses its running statistics if it has any.
    if (name != "use_input_stats" || !flag || !flag->isBool()) continue;
    const auto mean = node.op->schema().argumentIndexWithName("running_mean");
    if (mean && node.args[static_cast<std::size_t>(*mean)].value()) node.args[i] = {c10::IValue(false)};
  }
}

}  // namespace

Graph eval_graph(const Graph& graph) {
  return eval_graph(graph, [](const std::string&) { return true; });
}

Graph eval_graph(const Graph& graph, const std::function<bool(const std::string& module)>& evaluates) {
  Graph result = graph;
  std::erase_if(result.nodes,
                [&](const Node& node) { return updates_counter(graph, node) && evaluates(node.module); });
  std::erase_if(result.mutations, [&](const Mutation& mutation) {
    const Slot* counter = batch_counter(graph, mutation.target);
    if (!counter) return false;
    const std::size_t dot = counter->names[0].rfind('.');
    return evaluates(dot == std::string::npos ? "" : counter->names[0].substr(0, dot));
  });
  for (Node& node : result.nodes) {
    if (node.kind == Node::Kind::Op && evaluates(node.module)) clear_training_flags(node);
  }
  return result;
}

}  // namespace penstock::graph
