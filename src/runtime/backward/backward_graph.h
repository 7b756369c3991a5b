// Determines how the graph of a stage's forward pass is split for a split backward pass.
//
// R is the set of nodes that reach a stage input; the input half runs exactly these. Every other node leads
// only to weights. A node of R with an edge out of R is a boundary node: it computes both an input gradient
// and a weight gradient.
//   - Deferred boundary nodes (matmuls, convolutions) compute their weight gradients in the weight half, from
//     their incoming gradients, which the input half captures.
//   - The others (norms, biases) compute them in the input half: this is cheap, and their saved tensors can
//     be freed. The gradients that they send out of R are captured.
// A target outside R may have several sources. Its gradient is summed within one half, so that the order of
// summation is that of a full backward pass: if one of its sources is deferred, all are.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <vector>

namespace penstock::runtime {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

class SplitNode;

struct GraphSplit {
  std::vector<Node*> inner;             //!< nodes of R that run only in the input half
  std::vector<Node*> deferred;          //!< boundary nodes that run in both halves
  std::vector<Edge*> inward;            //!< edges of deferred nodes that stay in R
  edge_list early;                      //!< targets outside R whose gradient is complete after the input half
  std::vector<SplitNode*> split_nodes;  //!< nodes of R that queue their weight work themselves
  edge_list input_roots;                //!< roots in R, with their gradients
  variable_list input_root_grads;
  edge_list weight_roots;  //!< roots outside R, with their gradients
  variable_list weight_root_grads;
};

//! Traverses the graph from the roots. `input_nodes` are the gradient accumulators of the stage inputs.
GraphSplit find_split(const edge_list& roots, const variable_list& root_grads,
                      const std::vector<Node*>& input_nodes);

//! Whether the node has hooks, from the user or from libtorch, that run before or after it.
bool has_hooks(Node& node);

}  // namespace penstock::runtime
