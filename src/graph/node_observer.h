// Lets diagnostics follow which node of a graph runs.
#pragma once

#include <penstock/graph/ir.h>

#include <functional>

namespace penstock {

//! Called after each node that a GraphModule runs on this thread; empty for none.
std::function<void(const Node&)>& node_observer();

}  // namespace penstock
