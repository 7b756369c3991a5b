// Evaluation mode of parts of a graph.
#pragma once

#include <penstock/graph/ir.h>

#include <functional>
#include <string>

namespace penstock::graph {

//! Like `eval_graph`, but only for the operators of modules for which `evaluates(path)` is true.
Graph eval_graph(const Graph& graph, const std::function<bool(const std::string& module)>& evaluates);

}  // namespace penstock::graph
