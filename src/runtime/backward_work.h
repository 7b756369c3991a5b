// What a weight half consists of, and the base of our own autograd nodes that put work there.
#pragma once

#include <penstock/runtime/backward.h>

#include <torch/csrc/autograd/function.h>

#include <functional>
#include <utility>
#include <vector>

namespace penstock {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

struct WeightWork::Content {
  //! Computes a weight's gradient when the weight half runs.
  using Task = std::function<at::Tensor()>;

  std::vector<WeightWork> inner;             //!< of recomputed parts, in the order in which they ran
  std::vector<std::pair<Edge, Task>> tasks;  //!< gradients still to be computed, and where they go
  edge_list roots;                           //!< where the engine starts, and with what
  variable_list grads;
  std::function<void()> function;  //!< a user's own

  Content() = default;
  ~Content();
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  bool empty() const { return inner.empty() && tasks.empty() && roots.empty() && !function; }
  void run();
};

//! A node that knows of the split: while `queue` is set it leaves its weight work there, else it does it at
//! once.
class SplitNode : public Node {
 public:
  using Node::Node;
  WeightWork::Content* queue = nullptr;
};

}  // namespace penstock
