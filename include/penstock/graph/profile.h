// Where the time of a graph's forward goes, node by node.
#pragma once

#include <penstock/graph/module.h>

#include <span>
#include <string>
#include <vector>

namespace penstock {

//! Seconds that each node takes, the least of `runs` forward runs after one to warm up. Buffers are as before
//! afterwards.
std::vector<double> profile_nodes(const GraphModule& module, const std::vector<c10::IValue>& leaves,
                                  int runs = 3);

//! A table of nodes, the slowest first: time, share, operations a second, operator, result, module.
std::string profile_text(const Graph& graph, std::span<const double> seconds, std::size_t most = 30);

}  // namespace penstock
