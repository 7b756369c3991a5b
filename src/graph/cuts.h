// What forbids a cut.
#pragma once

#include <penstock/graph/ir.h>

#include <string>
#include <vector>

namespace penstock {

//! For each node, why the graph cannot be cut before it; empty where it can.
std::vector<std::string> cut_obstacles(const Graph& graph);

//! Whether all that the node makes is computed again where it is needed (see `recomputed_values`).
bool is_recomputed(const Node& node, const std::vector<bool>& again);

//! Whether the node asks a tensor for its sizes.
bool is_size_query(const Node& node);

}  // namespace penstock
