// Adapters of exported models.
#pragma once

#include <penstock/graph/ir.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/train/lora.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace penstock::train {

//! A graph with adapters.
struct AdaptedGraph {
  graph::Graph graph;
  Lora lora;
  std::map<std::string, graph::ValueMeta> adapters{};  //!< the added parameters, by name

  bool is_adapter(const std::string& name) const { return adapters.contains(name); }
  //! Returns the initial value of an added parameter, which requires a gradient.
  at::Tensor initial_value(const std::string& name) const;
};

//! Adds adapters to the selected linear layers and embeddings: their parameters as slots at the end, and
//! their operators, in the module of the layer, after each use of its weight. No other parameter requires a
//! gradient. Throws UsageError if a pattern selects no layer, or a selected weight has another use.
AdaptedGraph add_adapters(const graph::Graph& graph, const LoraOptions& options);

//! Names of the buffers that the graph changes while it runs, such as the statistics of batch norms.
std::vector<std::string> updated_buffers(const graph::Graph& graph);

//! Extends a tensor-parallel plan to the adapters of its layers: B is sharded by outputs like the weight of a
//! ColwiseParallel layer, A by inputs like that of a RowwiseParallel layer. The other factor is replicated.
//! The inputs of an embedding are the rows of its table.
parallel::ParallelPlan adapted_plan(parallel::ParallelPlan plan, const Lora& lora);

}  // namespace penstock::train
