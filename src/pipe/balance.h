// Splits a graph into stages of similar weight, using the planner's partitioner.
#pragma once

#include <penstock/graph/graph_module.h>
#include <penstock/graph/split.h>
#include <penstock/plan/costs.h>

#include <cstdint>
#include <span>
#include <vector>

namespace penstock::pipe {

//! Returns, per node, the indices of the slots of the parameters that it is the first to read, directly or
//! through a view.
std::vector<std::vector<std::size_t>> first_reads_of_parameters(const graph::Graph& graph);

//! Returns, per node, the bytes of these parameters.
std::vector<double> parameter_weights(const graph::Graph& graph);

//! Returns the estimated FLOPs per node.
std::vector<double> flop_weights(const graph::Graph& graph);

//! Returns the split positions that minimize the weight of the heaviest stage; among equals, prefers those
//! where few bytes cross. Throws UsageError if the graph cannot be split into `stages` stages.
graph::SplitPositions balanced_split(const graph::Graph& graph, int stages, std::span<const double> weights);

//! Returns, per node, the bytes that would be sent if the graph were split before it.
std::vector<std::uint64_t> crossing_bytes(const graph::Graph& graph);

//! Estimates the costs of the stages for the planner: times are FLOPs / `flops_per_second`, bytes follow from
//! sizes. A backward pass takes twice as long as a forward pass, half of it for the input gradients.
plan::Costs stage_costs(const graph::SplitGraph& split, double flops_per_second = 1e11);

}  // namespace penstock::pipe
