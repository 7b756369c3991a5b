// Runs a graph in pieces, some of which keep only their inputs and are computed again in the backward pass.
#pragma once

#include <penstock/graph/graph_module.h>

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock::pipe {

//! The nodes from `begin` to `end` of a graph.
struct GraphPiece {
  std::size_t begin = 0, end = 0;
  bool recomputed = false;
  std::string module{};  //!< the module whose activations are recomputed
};

//! Divides a graph into the calls of the modules with these paths, submodules included, and the nodes between
//! them. Of modules that contain each other, the outer one counts. Pieces without work join a neighbor.
std::vector<GraphPiece> recomputed_pieces(const graph::Graph& graph, const std::vector<std::string>& modules);

//! Throws UsageError, naming the module, if the graph cannot be divided there.
void check_recomputed_pieces(const graph::Graph& graph, const std::vector<std::string>& modules);

//! What recomputation saves and costs per microbatch.
struct RecomputedCosts {
  std::uint64_t bytes = 0;  //!< results that are not kept
  double flops = 0;         //!< operations that the backward pass repeats
};
RecomputedCosts recomputed_costs(const graph::Graph& graph, const std::vector<std::string>& modules);

//! The forward pass of a graph module, with recomputation.
class RecomputedGraph {
 public:
  //! Throws like `check_recomputed_pieces`.
  RecomputedGraph(std::shared_ptr<graph::GraphModule> module, const std::vector<std::string>& modules);
  ~RecomputedGraph();
  RecomputedGraph(const RecomputedGraph&) = delete;
  RecomputedGraph& operator=(const RecomputedGraph&) = delete;

  //! Whether there is anything to recompute.
  bool any() const;
  //! Whether a recomputed piece and another one read the same parameter: each adds to its gradient.
  bool shares_parameters() const;
  //! Like GraphModule::run in training mode.
  std::vector<c10::IValue> run(const std::vector<c10::IValue>& leaves);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::pipe
