// The layers of a graph, and the modules in them that can be recomputed, for the planner.
#pragma once

#include <penstock/graph/split.h>
#include <penstock/plan/planner.h>

#include <cstddef>
#include <span>
#include <vector>

namespace penstock::pipe {

//! Consecutive nodes of a graph.
struct GraphLayer {
  plan::Layer layer;                      //!< named by module and operator; without optimizer states
  std::size_t position = 0;               //!< of its first node
  std::vector<std::size_t> parameters{};  //!< slots that no earlier layer reads
};

//! Groups the nodes into at most `most` layers of similar time. Layers begin at split positions where few
//! bytes cross. `seconds` holds the forward time per node. A backward pass takes twice as long, half of it
//! for the weight gradients if the layer has weights.
std::vector<GraphLayer> graph_layers(const graph::Graph& graph, std::span<const double> seconds,
                                     std::size_t most = 64);

//! The modules whose activations the planner may recompute: the outermost numbered ones (`layers.0`), or all
//! without a parent if none is numbered, where the graph can be divided and that save memory. Those that save
//! the most bytes per operation come first; among equals, those that run earlier, whose stages hold the most
//! microbatches. `time` is that of `seconds`. A value that crosses from one layer to the next is not saved.
std::vector<plan::RecomputableModule> recomputable_modules(const graph::Graph& graph,
                                                           std::span<const GraphLayer> layers,
                                                           std::span<const double> seconds);

}  // namespace penstock::pipe
