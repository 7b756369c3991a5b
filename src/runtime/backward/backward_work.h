// The contents of a weight half, and the base class of our autograd nodes that queue weight work.
#pragma once

#include "runtime/backward/backward.h"

#include <torch/csrc/autograd/function.h>

#include <functional>
#include <utility>
#include <vector>

namespace penstock::runtime {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

struct WeightWork::Impl {
  //! A gradient that is still to be computed.
  struct Task {
    Edge target;
    bool alone;  //!< the target has no other source of gradients
    std::function<at::Tensor()> compute;
  };

  std::vector<WeightWork> inner;  //!< weight halves of recomputed functions, in execution order
  std::vector<Task> tasks;
  edge_list roots;  //!< where the engine starts, with `grads`
  variable_list grads;
  std::function<void()> function;  //!< a user function

  Impl() = default;
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void run();
  bool empty() const { return inner.empty() && tasks.empty() && roots.empty() && !function; }

 private:
  void run_tasks();
};

//! A node that supports the split backward pass: while `queue` is set, it queues its weight work there;
//! otherwise it does the work immediately.
class SplitNode : public Node {
 public:
  using Node::Node;
  WeightWork::Impl* queue = nullptr;
  bool alone = false;  //!< set with `queue`: its targets outside R have no other source
};

}  // namespace penstock::runtime
