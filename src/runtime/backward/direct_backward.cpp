// Runs the nodes of a backward graph in the order of autograd's engine.
#include "runtime/backward/direct_backward.h"

#include "base/text.h"
#include "runtime/backward/backward_graph.h"

#include <penstock/tensor/dtensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

namespace penstock::runtime {
namespace {

using at::Tensor;
using torch::autograd::AccumulateGrad;
using torch::autograd::Engine;
using torch::autograd::validate_outputs;

// Nodes and hooks of Python, which replaces the engine, need the interpreter's lock. Tensor hooks and
// operators of distributed tensors ask which backward pass of the engine is running.
bool engine_is_needed() {
  const Engine& engine = Engine::get_default_engine();
  return typeid(engine) != typeid(Engine) || torch::autograd::AnomalyMode::is_enabled() ||
         at::hasCallbacks() || torch::autograd::get_current_graph_task_id() >= 0;
}

// Whether the node is the derivative of one of libtorch's operators: their types have this mangled namespace.
bool is_of_operator(const Node& node) {
  return std::string_view(typeid(node).name()).starts_with("N5torch8autograd9generated");
}

// Distributed tensors come from a distributed leaf or gradient, or from a node of our own.
bool is_plain(Node& node) {
  if (has_hooks(node) || !node.device().is_cpu()) return false;
  if (is_of_operator(node)) return true;
  if (typeid(node) != typeid(AccumulateGrad)) return false;
  const auto& leaf = static_cast<const AccumulateGrad&>(node);
  return !leaf.tensor_post_acc_grad_hooks() && !tensor::is_dtensor(leaf.variable);
}

class DirectBackward {
 public:
  //! Returns whether every node is plain.
  bool enter(const edge_list& roots) {
    visits_.reserve(kFew);
    for (const Edge& root : roots) add_edge(root);
    for (std::size_t i = 0; i < visits_.size(); ++i) {
      Node& node = *visits_[i].node;
      if (!is_plain(node)) return false;
      visits_[i].first_target = targets_.size();
      for (const Edge& edge : node.next_edges()) add_edge(edge);
    }
    return true;
  }

  void run(const edge_list& roots, variable_list grads) {
    const at::AutoGradMode no_graph(false);
    validate_outputs(roots, grads, [](const std::string& problem) { return problem; });
    for (std::size_t i = 0; i < roots.size(); ++i) deliver(targets_[i], roots[i], std::move(grads[i]));
    while (!ready_.empty()) {
      const std::uint32_t next = ready_.top().index;
      ready_.pop();
      run_node(visits_[next]);
    }
  }

 private:
  struct Visit {
    Node* node;
    std::size_t first_target = 0;  // in `targets_`: the next nodes, by edge
    std::uint32_t missing = 0;     // edges into it that have not delivered their gradient
    variable_list grads{};
  };
  // The engine runs the youngest node first; accumulators of leaves count as youngest.
  struct Ready {
    std::uint64_t sequence_nr;
    std::uint32_t index;
    friend bool operator<(const Ready& a, const Ready& b) { return a.sequence_nr < b.sequence_nr; }
  };
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint32_t kFew = 16;  // so few nodes are found faster by comparing

  void add_edge(const Edge& edge) {
    if (!edge.is_valid()) return targets_.push_back(kNone);
    const std::uint32_t target = index_of(edge.function.get());
    ++visits_[target].missing;
    targets_.push_back(target);
  }

  std::uint32_t index_of(Node* node) {
    const auto next = static_cast<std::uint32_t>(visits_.size());
    if (next < kFew) {
      for (std::uint32_t i = 0; i < next; ++i)
        if (visits_[i].node == node) return i;
    } else {
      if (next == kFew)
        for (std::uint32_t i = 0; i < next; ++i) index_.emplace(visits_[i].node, i);
      const auto [found, is_new] = index_.emplace(node, next);
      if (!is_new) return found->second;
    }
    visits_.push_back({.node = node});
    return next;
  }

  // Frees the gradients that the node got: the next one may then add to a result in place.
  static variable_list call(Node& node, variable_list grads) {
    grads.resize(node.num_inputs());
    node.will_release_variables();
    variable_list results = node(std::move(grads));
    validate_outputs(node.next_edges(), results, [&node](const std::string& problem) {
      return str_cat(node.name(), " returned an ", problem);
    });
    node.release_variables();
    return results;
  }

  void run_node(Visit& visit) {
    Node& node = *visit.node;
    variable_list results = call(node, std::move(visit.grads));
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::uint32_t target = targets_[visit.first_target + i];
      if (target != kNone) deliver(target, node.next_edge(i), std::move(results[i]));
    }
  }

  void deliver(std::uint32_t target, const Edge& edge, Tensor grad) {
    Visit& visit = visits_[target];
    if (grad.defined()) {
      visit.grads.resize(visit.node->num_inputs());
      add(visit.grads[edge.input_nr], std::move(grad), *visit.node);
    }
    if (--visit.missing == 0) ready_.push({visit.node->sequence_nr(), target});
  }

  static void add(Tensor& sum, Tensor grad, Node& node) {
    if (!sum.defined()) {
      sum = std::move(grad);
      return;
    }
    torch::autograd::InputBuffer buffer(1);  // adds in place where that is safe
    buffer.buffer[0] = std::move(sum);
    buffer.add(0, std::move(grad), std::nullopt, std::nullopt, &node);
    sum = std::move(buffer.buffer[0]);
  }

  ska::flat_hash_map<Node*, std::uint32_t> index_;  // empty if there are few nodes
  std::vector<Visit> visits_;
  std::vector<std::uint32_t> targets_;  // those of the roots come first
  std::priority_queue<Ready> ready_;
};

}  // namespace

bool run_backward_directly(const edge_list& roots, const variable_list& grads) {
  if (engine_is_needed() || std::any_of(grads.begin(), grads.end(), tensor::is_dtensor)) return false;
  DirectBackward backward;
  if (!backward.enter(roots)) return false;
  backward.run(roots, grads);
  return true;
}

}  // namespace penstock::runtime
