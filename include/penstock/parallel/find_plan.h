// A plan of tensor parallelism found in a graph: for exported models, whose layers have any names.
#pragma once

#include <penstock/parallel/tensor_parallel.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

struct Graph;

struct FoundPlan {
  ParallelPlan plan;
  //! One line for each pair: `blocks.0.attention.q, blocks.0.attention.k by columns, blocks.0.attention.out
  //! by rows`.
  std::vector<std::string> pairs;
  //! One line for each layer that stays whole, with the reason.
  std::vector<std::string> whole;
};

//! Pairs of layers in Megatron's layout: whatever leads from some layers, by pointwise operators, changes of
//! shape and attention alone, to one other layer and nowhere else. The first are cut by their outputs, the
//! other by its inputs; the pair costs one all-reduce each way. Where a layer's outputs are divided into
//! heads, their number must be a multiple of the ranks; a layer that is used several times, or whose outputs
//! are divided otherwise (a fused query-key-value layer), stays whole, and so do tables, norms and what ends
//! in the model's outputs.
FoundPlan find_parallel_plan(const Graph& graph, std::int64_t ranks);
//! The same; UsageError, with this hint, where no layers were found.
FoundPlan require_parallel_plan(const Graph& graph, std::int64_t ranks, const std::string& hint);

}  // namespace penstock
