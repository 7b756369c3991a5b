// Lets diagnostics observe which node of a graph runs.
#pragma once

#include <penstock/graph/ir.h>

#include <functional>

namespace penstock::graph {

//! Called after each node that a GraphModule runs on this thread. Empty by default.
std::function<void(const Node&)>& node_observer();

}  // namespace penstock::graph
