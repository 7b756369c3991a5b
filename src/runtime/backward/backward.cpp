// The backward pass of a stage: in full, or the input half, which returns the weight half as WeightWork.
#include "runtime/backward/backward.h"

#include "base/text.h"
#include "runtime/backward/backward_edges.h"
#include "runtime/backward/backward_graph.h"
#include "runtime/backward/backward_work.h"
#include "runtime/backward/direct_backward.h"

#include <penstock/base/error.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <sstream>

namespace penstock::runtime {
namespace {

using at::Tensor;
using torch::autograd::Engine;
using torch::autograd::impl::gradient_edge;

struct Roots {
  edge_list edges;
  variable_list grads;
};

void check_gradient(std::size_t output, at::SymIntArrayRef sizes, const Tensor& grad) {
  if (grad.sym_sizes() == sizes) return;
  std::ostringstream text;
  text << "an output of shape " << sizes << " got a gradient of shape " << grad.sizes();
  ErrorContext context;
  context.tensor = str_cat("outputs[", output, "]");
  throw ShapeError(text.str(), context);
}

void check_counts(std::size_t outputs, std::size_t grads) {
  if (outputs == grads) return;
  throw UsageError(
      str_cat("the backward pass of ", outputs, " outputs needs as many gradients, not ", grads));
}

Roots roots_of(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grads) {
  check_counts(outputs.size(), grads.size());
  Roots roots;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!grads[i].defined() || !outputs[i].defined() || !outputs[i].requires_grad()) continue;
    check_gradient(i, outputs[i].sym_sizes(), grads[i]);
    roots.edges.push_back(gradient_edge(outputs[i]));
    roots.grads.push_back(grads[i]);
  }
  return roots;
}

Roots roots_of(const edge_list& outputs, const variable_list& grads) {
  check_counts(outputs.size(), grads.size());
  Roots roots;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!grads[i].defined()) continue;
    check_gradient(i, outputs[i].function->input_metadata(outputs[i].input_nr).shape_as_dim_vector(),
                   grads[i]);
    roots.edges.push_back(outputs[i]);
    roots.grads.push_back(grads[i]);
  }
  return roots;
}

// The inputs that need gradients, without duplicates.
struct Wanted {
  std::vector<std::size_t> indices;
  edge_list edges;
  std::vector<Node*> nodes;
};

Wanted wanted_of(const std::vector<Tensor>& inputs) {
  Wanted wanted;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    if (!inputs[i].is_leaf()) {
      ErrorContext context;
      context.tensor = str_cat("inputs[", i, "]");
      throw UsageError("an input of a stage's backward is not a leaf tensor", context,
                       "detach it before the forward pass (flatten_args_detach)");
    }
    Edge edge = gradient_edge(inputs[i]);
    if (std::find(wanted.nodes.begin(), wanted.nodes.end(), edge.function.get()) != wanted.nodes.end())
      continue;
    wanted.indices.push_back(i);
    wanted.nodes.push_back(edge.function.get());
    wanted.edges.push_back(std::move(edge));
  }
  return wanted;
}

// Lays out the gradient as the accumulator of the leaf would: like the leaf. The receiver can then predict
// the layout.
Tensor match_layout(Tensor grad, const Tensor& input) {
  if (!grad.defined() || tensor::is_dtensor(grad)) return grad;
  if (!input.is_non_overlapping_and_dense()) return grad.contiguous();
  if (grad.strides() == input.strides()) return grad;
  return at::empty_strided(input.sizes(), input.strides(), grad.options()).copy_(grad);
}

// Records the gradients that arrive at a node, after user hooks have run.
class Recorder : public torch::autograd::FunctionPreHook {
 public:
  explicit Recorder(std::shared_ptr<variable_list> into) : into_(std::move(into)) {}
  variable_list operator()(const variable_list& grads) override { return *into_ = grads; }

 private:
  std::shared_ptr<variable_list>
      into_;  // shared: if the engine throws, the graph and this hook may outlive InputHalf
};

// A full backward pass frees saved tensors while it runs. The input half must keep those of the deferred
// nodes, so it runs with keep_graph. This hook frees the saved tensors of every other node as soon as the
// node has run.
class ReleaseWhenRun : public torch::autograd::FunctionPostHook {
 public:
  explicit ReleaseWhenRun(Node& node) : node_(node) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    node_.release_variables();
    return outputs;
  }

 private:
  Node& node_;  // owns this hook
};

void drop_hooks(Node& node) {
  node.tensor_pre_hooks().clear();
  node.pre_hooks().clear();
  node.post_hooks().clear();
  node.retains_grad_hooks().clear();
}

// Runs the input half on a split graph.
class InputHalf {
 public:
  InputHalf(GraphSplit split, const Wanted& wanted) : split_(std::move(split)), wanted_(wanted) {}

  //! Returns the requested gradients and fills `work`.
  variable_list run(WeightWork::Impl& work) {
    choose_captures();
    variable_list results = execute(work);
    collect(results, work);
    results.resize(wanted_.edges.size());
    sever();
    return results;
  }

 private:
  // Gradients of nodes with hooks are recorded after the hooks, so that the hooks run in this half only.
  // Those of other nodes are captured by the engine at no cost.
  void choose_captures() {
    captures_ = wanted_.edges;
    for (Node* node : split_.inner) node->add_post_hook(std::make_unique<ReleaseWhenRun>(*node));
    recorded_.resize(split_.deferred.size());
    for (std::size_t i = 0; i < split_.deferred.size(); ++i) {
      Node& node = *split_.deferred[i];
      if (has_hooks(node)) {
        recorded_[i] = std::make_shared<variable_list>();
        node.add_pre_hook(std::make_unique<Recorder>(recorded_[i]));
      } else {
        for (std::uint32_t nr = 0; nr < node.num_inputs(); ++nr) captures_.emplace_back(node.getptr(), nr);
      }
    }
    captures_.insert(captures_.end(), split_.early.begin(), split_.early.end());
  }

  variable_list execute(WeightWork::Impl& work) {
    struct Listening {  // resets `queue` on every path: nodes must not keep a pointer to `work`
      const std::vector<SplitNode*>& nodes;
      ~Listening() {
        for (SplitNode* node : nodes) node->queue = nullptr;
      }
    } listening{split_.split_nodes};
    for (SplitNode* node : split_.split_nodes) node->queue = &work;
    return Engine::get_default_engine().execute(split_.input_roots, split_.input_root_grads,
                                                /*keep_graph=*/true,
                                                /*create_graph=*/false, /*accumulate_grad=*/false, captures_);
  }

  void collect(const variable_list& results, WeightWork::Impl& work) {
    std::size_t next = wanted_.edges.size();
    const auto add = [&work](Edge edge, const Tensor& grad) {
      if (!grad.defined()) return;
      work.roots.push_back(std::move(edge));
      work.grads.push_back(grad);
    };
    for (std::size_t i = 0; i < split_.deferred.size(); ++i) {
      Node& node = *split_.deferred[i];
      for (std::uint32_t nr = 0; nr < node.num_inputs(); ++nr) {
        if (!recorded_[i]) {
          add({node.getptr(), nr}, results[next++]);
        } else if (nr < recorded_[i]->size()) {
          add({node.getptr(), nr}, (*recorded_[i])[nr]);
        }
      }
      if (recorded_[i]) drop_hooks(node);
    }
    for (const Edge& edge : split_.early) add(edge, results[next++]);
    for (std::size_t i = 0; i < split_.weight_roots.size(); ++i)
      add(split_.weight_roots[i], split_.weight_root_grads[i]);
  }

  // Removes the edges into R, so that the weight half does not compute the input gradients again.
  void sever() {
    edge_list severed;  // keeps every node alive until all edges are removed
    for (Edge* edge : split_.inward) severed.push_back(std::exchange(*edge, {}));
  }

  GraphSplit split_;
  const Wanted& wanted_;
  edge_list captures_;
  std::vector<std::shared_ptr<variable_list>>
      recorded_;  // per deferred node; null if the engine captures its gradients
};

std::vector<Tensor> scatter_grads(variable_list grads, const Wanted& wanted,
                                  const std::vector<Tensor>& inputs) {
  std::vector<Tensor> result(inputs.size());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const std::size_t index = wanted.indices[i];
    result[index] = match_layout(std::move(grads[i]), inputs[index]);
  }
  return result;
}

// Removes the `.grad` of the inputs temporarily and restores it.
class SavedGrads {
 public:
  SavedGrads(const std::vector<Tensor>& inputs, const Wanted& wanted) : inputs_(inputs), wanted_(wanted) {
    for (const std::size_t index : wanted_.indices) before_.push_back(std::exchange(grad(index), Tensor()));
  }
  ~SavedGrads() {
    for (std::size_t i = 0; i < before_.size(); ++i) grad(wanted_.indices[i]) = std::move(before_[i]);
  }
  SavedGrads(const SavedGrads&) = delete;
  SavedGrads& operator=(const SavedGrads&) = delete;

  variable_list take() {
    variable_list grads;
    for (const std::size_t index : wanted_.indices) grads.push_back(std::move(grad(index)));
    return grads;
  }

 private:
  Tensor& grad(std::size_t index) const { return inputs_[index].mutable_grad(); }

  const std::vector<Tensor>& inputs_;
  const Wanted& wanted_;
  std::vector<Tensor> before_;
};

std::vector<Tensor> run_full(const Roots& roots, const std::vector<Tensor>& inputs) {
  const Wanted wanted = wanted_of(inputs);
  if (roots.edges.empty()) return std::vector<Tensor>(inputs.size());
  SavedGrads saved(inputs, wanted);
  if (!run_backward_directly(roots.edges, roots.grads)) {
    Engine::get_default_engine().execute(roots.edges, roots.grads, /*keep_graph=*/false,
                                         /*create_graph=*/false, /*accumulate_grad=*/true);
  }
  return scatter_grads(saved.take(), wanted, inputs);
}

InputBackward run_input(const Roots& roots, const std::vector<Tensor>& inputs) {
  const Wanted wanted = wanted_of(inputs);
  auto work = std::make_unique<WeightWork::Impl>();
  GraphSplit split = find_split(roots.edges, roots.grads, wanted.nodes);
  InputBackward result;
  if (split.input_roots.empty()) {
    work->roots = std::move(split.weight_roots);
    work->grads = std::move(split.weight_root_grads);
    result.input_grads.resize(inputs.size());
  } else {
    result.input_grads = scatter_grads(InputHalf(std::move(split), wanted).run(*work), wanted, inputs);
  }
  if (!work->empty()) result.weights = WeightWork(std::move(work));
  return result;
}

InputBackward run_with(const std::function<std::function<void()>()>& builder, const Roots& roots,
                       const std::vector<Tensor>& inputs) {
  InputBackward result;
  result.input_grads = run_full(roots, inputs);
  result.weights = WeightWork::of(builder());
  return result;
}

}  // namespace

std::vector<Tensor> backward_full(const std::vector<Tensor>& outputs, const std::vector<Tensor>& output_grads,
                                  const std::vector<Tensor>& inputs) {
  return run_full(roots_of(outputs, output_grads), inputs);
}
std::vector<Tensor> backward_full(const edge_list& outputs, const variable_list& output_grads,
                                  const std::vector<Tensor>& inputs) {
  return run_full(roots_of(outputs, output_grads), inputs);
}

InputBackward backward_input(const std::vector<Tensor>& outputs, const std::vector<Tensor>& output_grads,
                             const std::vector<Tensor>& inputs) {
  return run_input(roots_of(outputs, output_grads), inputs);
}
InputBackward backward_input(const edge_list& outputs, const variable_list& output_grads,
                             const std::vector<Tensor>& inputs) {
  return run_input(roots_of(outputs, output_grads), inputs);
}

InputBackward backward_input_with(const std::function<std::function<void()>()>& builder,
                                  const std::vector<Tensor>& outputs, const std::vector<Tensor>& output_grads,
                                  const std::vector<Tensor>& inputs) {
  return run_with(builder, roots_of(outputs, output_grads), inputs);
}
InputBackward backward_input_with(const std::function<std::function<void()>()>& builder,
                                  const edge_list& outputs, const variable_list& output_grads,
                                  const std::vector<Tensor>& inputs) {
  return run_with(builder, roots_of(outputs, output_grads), inputs);
}

}  // namespace penstock::runtime
