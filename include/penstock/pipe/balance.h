// Cuts a graph into stages of about equal weight, with the planner's partitioner.
#pragma once

#include <penstock/graph/module.h>
#include <penstock/graph/split.h>
#include <penstock/plan/costs.h>

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

//! A weight for each node: bytes of the parameters that it is the first to read, itself or by a view.
std::vector<double> parameter_weights(const Graph& graph);

//! Estimated floating-point operations of each node.
std::vector<double> flop_weights(const Graph& graph);

//! The cuts into `stages` stages whose heaviest is lightest; among those with the same weights, places where
//! few bytes cross. UsageError where the graph cannot be cut into so many.
Cuts balanced_cuts(const Graph& graph, int stages, std::span<const double> weights);

//! Bytes that would cross a cut before each node.
std::vector<std::uint64_t> crossing_bytes(const Graph& graph);

//! What the planner needs to know of stages: times as estimated operations over `flops_per_second`, bytes as
//! sizes tell. A backward is taken for twice a forward, half of it for the inputs.
Costs stage_costs(const SplitGraph& split, double flops_per_second = 1e11);

//! The model as the planner takes it: at most `most` layers of about equal time, between places where it can
//! be cut and little crosses, named by module and operator. `seconds` are the forward times of the nodes; a
//! backward is taken for twice that, half of it for the weights where a layer has any.
std::vector<Layer> graph_layers(const Graph& graph, std::span<const double> seconds, std::size_t most = 64);

}  // namespace penstock
