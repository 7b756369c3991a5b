// Derives a tensor-parallel plan from a graph, for exported models with arbitrary layer names.
#pragma once

#include <penstock/parallel/tensor_parallel.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::graph {
struct Graph;
}

namespace penstock::parallel {

//! A plan, with the reasons for its choices.
struct FoundPlan {
  ParallelPlan plan;
  //! One line per pair: `blocks.0.attention.q, blocks.0.attention.k by columns, blocks.0.attention.out by
  //! rows`.
  std::vector<std::string> pairs;
  //! One line per layer that is not sharded, with the reason.
  std::vector<std::string> not_sharded;
};

//! Finds pairs of layers in Megatron's layout: one or more layers whose outputs reach exactly one other
//! layer, through pointwise operators, reshapes and attention only. The first layers become column-wise, the
//! last one row-wise; a pair costs one all-reduce in each direction. If the outputs of a layer are split into
//! heads, the number of heads must be a multiple of `ranks`. These are not sharded: layers that are used more
//! than once, layers whose outputs are split in another way (such as a fused query-key-value layer),
//! embeddings, norms, and layers that lead to the outputs of the model.
FoundPlan find_parallel_plan(const graph::Graph& graph, std::int64_t ranks);

}  // namespace penstock::parallel
