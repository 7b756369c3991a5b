// Estimates for the planner: floating-point operations of nodes, bytes of values, from the sizes that are
// known.
#pragma once

#include <penstock/graph/ir.h>

#include <cstdint>

namespace penstock {

//! Multiplications and additions of one run of the node's forward: exact for matrix products, convolutions
//! and attention, one for each element of the results otherwise; 0 where sizes are not known.
double node_flops(const Graph& graph, const Node& node);

//! Bytes of the results that are new memory (views are free).
std::uint64_t node_result_bytes(const Graph& graph, const Node& node);

struct GraphCosts {
  double flops = 0;
  std::uint64_t parameter_bytes = 0;
  std::uint64_t activation_bytes = 0;  //!< of all results, as if autograd kept each of them
};

GraphCosts graph_costs(const Graph& graph);

}  // namespace penstock
