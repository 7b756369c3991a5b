// Profiles the forward pass of a graph per node.
#pragma once

#include <penstock/graph/graph_module.h>

#include <span>
#include <string>
#include <vector>

namespace penstock::graph {

//! Returns the seconds per node: the minimum over `runs` forward passes, after one warm-up run. Restores the
//! buffers.
std::vector<double> profile_nodes(const GraphModule& module, const std::vector<c10::IValue>& leaves,
                                  int runs = 3);

//! Formats the `most` slowest nodes as a table: time, share, GFLOP/s, operator, result, module.
std::string profile_text(const Graph& graph, std::span<const double> seconds, std::size_t most = 30);

}  // namespace penstock::graph
