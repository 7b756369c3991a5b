// Conditions that forbid a split position.
#pragma once

#include <penstock/graph/ir.h>

#include <string>
#include <vector>

namespace penstock::graph {

//! For each node, the reason why the graph cannot be split before it; empty if it can.
std::vector<std::string> split_obstacles(const Graph& graph);

//! Whether every result of the node is recomputed where it is needed (see `recomputed_values`).
bool is_recomputed(const Node& node, const std::vector<bool>& recomputed);

//! Whether the node queries the sizes of a tensor.
bool is_size_query(const Node& node);

}  // namespace penstock::graph
