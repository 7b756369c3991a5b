// Cost estimates for the planner: FLOPs of nodes and bytes of values, computed from known sizes.
#pragma once

#include <penstock/graph/ir.h>

#include <cstdint>

namespace penstock::graph {

//! FLOPs of the node's forward: exact for matrix products, convolutions and attention, otherwise one per
//! result element; 0 if the sizes are unknown.
double node_flops(const Graph& graph, const Node& node);

//! Bytes that the node allocates for its results; views count as 0.
std::uint64_t node_result_bytes(const Graph& graph, const Node& node);

struct GraphCosts {
  double flops = 0;
  std::uint64_t parameter_bytes = 0;
  std::uint64_t activation_bytes = 0;  //!< of all results; assumes that autograd saves every one
};

GraphCosts graph_costs(const Graph& graph);

}  // namespace penstock::graph
