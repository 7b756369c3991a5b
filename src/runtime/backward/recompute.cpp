// Activation recomputation: one autograd node whose backward pass runs the forward pass again and then its
// backward pass.
#include "base/text.h"
#include "runtime/backward/backward_work.h"
#include "runtime/stage/hooked_module.h"
#include "runtime/stage/random_scope_state.h"

#include <penstock/base/error.h>
#include <penstock/runtime/recompute.h>
#include <penstock/value/tree.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>

namespace penstock::runtime {
namespace {

using at::Tensor;
using torch::autograd::SavedVariable;

// The default generators of the CPU and of the inputs' devices.
class RandomState {
 public:
  static RandomState save(const std::vector<Tensor>& inputs) {
    RandomState state;
    state.add(at::Device(at::kCPU));
    for (const Tensor& input : inputs) {
      if (input.defined() && !input.device().is_meta()) state.add(input.device());
    }
    return state;
  }

  void restore() const {
    for (const auto& [generator, content] : saved_) {
      at::Generator target = generator;
      const std::scoped_lock lock(target.mutex());
      target.set_state(content);
    }
  }

 private:
  void add(at::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    for (const auto& [known, content] : saved_) {
      if (known == generator) return;
    }
    const std::scoped_lock lock(generator.mutex());
    saved_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::pair<at::Generator, Tensor>> saved_;
};

// Restores the state of the generators on destruction.
class RandomStateGuard {
 public:
  explicit RandomStateGuard(const std::vector<Tensor>& inputs) : found_(RandomState::save(inputs)) {}
  ~RandomStateGuard() { found_.restore(); }
  RandomStateGuard(const RandomStateGuard&) = delete;
  RandomStateGuard& operator=(const RandomStateGuard&) = delete;

 private:
  RandomState found_;
};

// Whether operators cast their arguments on the CPU and the devices of the inputs, and to which types.
class AutocastState {
  struct Device {
    at::DeviceType type;
    bool on;
    at::ScalarType dtype;
  };

 public:
  explicit AutocastState(const std::vector<Tensor>& inputs) {
    std::set<at::DeviceType> types{at::kCPU};
    for (const Tensor& input : inputs)
      if (input.defined()) types.insert(input.device().type());
    for (const at::DeviceType type : types)
      if (at::autocast::is_autocast_available(type)) devices_.push_back(now(type));
  }
  bool is_on() const {
    return std::any_of(devices_.begin(), devices_.end(), [](const Device& device) { return device.on; });
  }

  //! Casts in the same way during its lifetime. The cache of autocast is off: it would keep a weight that was
  //! cast without gradients, or before an update, for the operators that follow.
  class Scope {
   public:
    explicit Scope(const AutocastState& state) : cached_(at::autocast::is_autocast_cache_enabled()) {
      for (const Device& device : state.devices_) {
        before_.push_back(now(device.type));
        set(device);
      }
      if (state.is_on()) at::autocast::set_autocast_cache_enabled(false);
    }
    ~Scope() {
      for (const Device& device : before_) set(device);
      at::autocast::set_autocast_cache_enabled(cached_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    bool cached_;
    std::vector<Device> before_;
  };

 private:
  static Device now(at::DeviceType type) {
    return {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)};
  }
  static void set(const Device& device) {
    at::autocast::set_autocast_enabled(device.type, device.on);
    at::autocast::set_autocast_dtype(device.type, device.dtype);
  }

  std::vector<Device> devices_;
};

class RecomputeNode final : public SplitNode {
 public:
  RecomputeNode(TensorFunction forward, const std::vector<Tensor>& inputs, RecomputeOptions options)
      : SplitNode(torch::autograd::collect_next_edges(inputs)),
        forward_(std::move(forward)),
        options_(std::move(options)),
        autocast_(inputs) {
    for (const Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
    if (!options_.preserve_random || options_.seed) return;
    scope_ = random_scope_state();
    if (!scope_) random_ = RandomState::save(inputs);
  }

  //! Runs the forward pass and attaches this node to its floating-point outputs.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs) {
    std::vector<Tensor> outputs;
    {
      const at::NoGradGuard no_grad;
      const AutocastState::Scope autocast(autocast_);
      if (options_.seed) options_.seed();
      outputs = forward_(inputs);
      for (Tensor& output : outputs) output = output.defined() ? output.detach() : output;
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !(outputs[i].is_floating_point() || outputs[i].is_complex())) continue;
      torch::autograd::create_gradient_edge(outputs[i], getptr());
      differentiable_.push_back(i);
    }
    count_ = outputs.size();
    return outputs;
  }

  std::string name() const override { return "RecomputeBackward"; }

  void release_variables() override {
    inputs_.clear();
    forward_ = nullptr;
    released_ = true;
  }

 protected:
  variable_list apply(variable_list&& grads) override {
    if (released_) throw UsageError("the backward pass of a recomputed function ran twice");
    std::vector<Tensor> inputs;
    for (const SavedVariable& saved : inputs_) {
      const Tensor input = saved.unpack();
      inputs.push_back(input.defined() ? input.detach().set_requires_grad(input.requires_grad()) : input);
    }
    const std::vector<Tensor> outputs = rerun_forward(inputs);
    std::vector<Tensor> output_grads(outputs.size());
    for (std::size_t i = 0; i < differentiable_.size(); ++i)
      output_grads[differentiable_[i]] = std::move(grads[i]);
    if (queue == nullptr) return backward_full(outputs, output_grads, inputs);
    InputBackward half = backward_input(outputs, output_grads, inputs);
    if (half.weights.pending()) queue->inner.push_back(std::move(half.weights));
    queue_for_weights(half.input_grads);
    return std::move(half.input_grads);
  }

 private:
  // The engine drops the gradients of inputs that do not depend on those of the stage, such as a bias that
  // several blocks share: the weight half continues from them.
  void queue_for_weights(variable_list& grads) const {
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined() || !next_edge(i).is_valid() || task_should_compute_output(i)) continue;
      queue->roots.push_back(next_edge(i));
      queue->grads.push_back(std::exchange(grads[i], {}));
    }
  }

  std::vector<Tensor> rerun_forward(const std::vector<Tensor>& inputs) const {
    const RandomStateGuard guard(inputs);
    std::optional<RandomScope> scope;
    if (options_.seed) {
      options_.seed();
    } else if (scope_) {
      scope.emplace(scope_->key);
      set_random_scope_state(*scope_);
    } else if (random_) {
      random_->restore();
    }
    const AutocastState::Scope autocast(autocast_);
    const at::AutoGradMode grad_mode(true);
    std::vector<Tensor> outputs = forward_(inputs);
    if (outputs.size() != count_) {
      throw UsageError(str_cat("a recomputed function returned ", outputs.size(),
                               " outputs, but the first run returned ", count_));
    }
    return outputs;
  }

  TensorFunction forward_;
  RecomputeOptions options_;
  AutocastState autocast_;
  std::optional<RandomScopeState> scope_;  // of the thread, instead of the default generators
  std::optional<RandomState> random_;
  std::vector<SavedVariable> inputs_;
  std::vector<std::size_t> differentiable_;  // differentiable outputs, in the input order of this node
  std::size_t count_ = 0;
  bool released_ = false;
};

class RecomputedCalls final : public detail::CallHooks {
 public:
  void before() override {}
  void after(const std::vector<Tensor>& /*outputs*/) override {}
  bool recomputes() const override { return true; }
};

}  // namespace

void recompute_calls(const std::shared_ptr<torch::nn::Module>& module) {
  hook_module(dynamic_cast<const void*>(module.get()), module, std::make_shared<RecomputedCalls>());
}

std::vector<Tensor> recompute(const TensorFunction& forward, const std::vector<Tensor>& inputs,
                              const RecomputeOptions& options) {
  if (!at::GradMode::is_enabled()) {
    if (options.seed) options.seed();
    return forward(inputs);
  }
  return c10::make_intrusive<RecomputeNode>(forward, inputs, options)->run(inputs);
}

c10::IValue recompute_tree(const std::function<c10::IValue(const std::vector<c10::IValue>&)>& forward,
                           const std::vector<c10::IValue>& args, const RecomputeOptions& options) {
  // Tensors pass through the node; the function captures the rest of the tree.
  value::FlatTree flat = value::flatten(c10::ivalue::Tuple::create(args));
  std::vector<Tensor> inputs;
  for (c10::IValue& leaf : flat.leaves) {
    if (!leaf.isTensor()) continue;
    inputs.push_back(leaf.toTensor());
    leaf = Tensor();
  }
  const auto result =
      std::make_shared<value::FlatTree>();  // of the first run: the structure and the non-tensor leaves
  const TensorFunction function = [forward, flat, result](const std::vector<Tensor>& tensors) {
    std::vector<c10::IValue> leaves = flat.leaves;
    std::size_t next = 0;
    for (c10::IValue& leaf : leaves) {
      if (leaf.isTensor()) leaf = tensors[next++];
    }
    value::FlatTree made =
        value::flatten(forward(unflatten(leaves, flat.structure).toTupleRef().elements().vec()));
    std::vector<Tensor> outputs;
    for (c10::IValue& leaf : made.leaves) {
      if (!leaf.isTensor()) continue;
      outputs.push_back(leaf.toTensor());
      leaf = Tensor();
    }
    *result = std::move(made);
    return outputs;
  };
  const std::vector<Tensor> outputs = recompute(function, inputs, options);
  value::FlatTree tree = *result;
  std::size_t next = 0;
  for (c10::IValue& leaf : tree.leaves) {
    if (leaf.isTensor()) leaf = outputs[next++];
  }
  return unflatten(tree.leaves, tree.structure);
}

}  // namespace penstock::runtime
