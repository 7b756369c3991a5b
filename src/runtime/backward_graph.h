// Where the graph of a stage's forward is cut for a split backward.
//
// R is the set of nodes that reach a stage input: what the input half runs. Every other node leads to weights
// only. A node of R with an edge out of R is a boundary node: it computes something for an input and
// something for a weight.
//   - Deferred boundary nodes (matmuls, convolutions) compute their weight part in the weight half, from
//   their incoming
//     gradients, which the input half captures.
//   - The others (norms, biases) compute it in the input half already: it is cheap, and their saved tensors
//   can go. The
//     gradients that they send out of R are captured.
// A target outside R may be fed by several nodes; its gradient is summed within one half, so that the order
// of summation is that of a whole backward: if one of its feeders is deferred, all are.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <vector>

namespace penstock {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

class SplitNode;

struct GraphCut {
  std::vector<Node*> inner;           //!< nodes of R that are done after the input half
  std::vector<Node*> deferred;        //!< boundary nodes that run in both halves
  std::vector<Edge*> inward;          //!< the deferred nodes' edges that stay in R
  edge_list early;                    //!< targets outside R whose gradient the input half has in full
  std::vector<SplitNode*> own_split;  //!< nodes of R that queue their weight work themselves
  edge_list input_roots;              //!< the roots that are in R, and their gradients
  variable_list input_root_grads;
  edge_list weight_roots;  //!< the others
  variable_list weight_root_grads;
};

//! Walks from the roots. `input_nodes` are the gradient accumulators of the stage's inputs.
GraphCut find_cut(const edge_list& roots, const variable_list& root_grads,
                  const std::vector<Node*>& input_nodes);

//! Whether the user or libtorch hung hooks on the node that run before or after it.
bool has_hooks(Node& node);

}  // namespace penstock
