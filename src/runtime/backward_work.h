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
  //! A gradient still to be computed.
  struct Task {
    Edge target;
    bool alone;  //!< nothing else feeds the target
    std::function<at::Tensor()> compute;
  };

  std::vector<WeightWork> inner;  //!< of recomputed parts, in the order in which they ran
  std::vector<Task> tasks;
  edge_list roots;  //!< where the engine starts, and with what
  variable_list grads;
  std::function<void()> function;  //!< a user's own

  Content() = default;
  ~Content();
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  void run();
  bool empty() const { return inner.empty() && tasks.empty() && roots.empty() && !function; }

 private:
  void run_tasks();
};

//! A node that knows of the split: while `queue` is set it leaves its weight work there, else it does it at
//! once.
class SplitNode : public Node {
 public:
  using Node::Node;
  WeightWork::Content* queue = nullptr;
  bool alone = false;  //!< set with `queue`: what it feeds outside of R, nothing else feeds
};

}  // namespace penstock
