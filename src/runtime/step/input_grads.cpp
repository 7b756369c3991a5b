// Combines the gradients of microbatches into gradients of the caller's tensors, by inverting the split.
#include "runtime/step/input_grads.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <unordered_map>

namespace penstock::runtime {
namespace {

struct Parts {
  variable_list inputs, grads;

  // Sorted by stage and microbatch, so that sums do not depend on the schedule.
  explicit Parts(std::vector<InputGrad> items) {
    std::stable_sort(items.begin(), items.end(), [](const InputGrad& a, const InputGrad& b) {
      return std::pair(a.stage, a.microbatch) < std::pair(b.stage, b.microbatch);
    });
    for (const InputGrad& item : items) {
      inputs.push_back(item.input);
      grads.push_back(item.grad);
    }
  }
};

// Computes the gradients of all tensors of several trees in one pass.
class TreeGrads {
 public:
  TreeGrads(const std::vector<InputGrad>& items, const std::vector<c10::IValue>& trees) {
    variable_list wanted;
    for (const c10::IValue& tree : trees) {
      for (const at::Tensor& tensor : value::tensors_of(tree)) {
        if (tensor.requires_grad() && grads_.try_emplace(tensor.unsafeGetTensorImpl()).second)
          wanted.push_back(tensor);
      }
    }
    if (wanted.empty() || items.empty()) return;
    const Parts parts(items);
    const variable_list found = torch::autograd::grad(parts.inputs, wanted, parts.grads,
                                                      /*retain_graph=*/true, /*create_graph=*/false,
                                                      /*allow_unused=*/true);
    for (std::size_t i = 0; i < wanted.size(); ++i) grads_[wanted[i].unsafeGetTensorImpl()] = found[i];
  }

  //! Returns the tree with every tensor replaced by its gradient, or None if it has none.
  c10::IValue of(const c10::IValue& tree) const {
    return value::map_leaves(tree, [this](const c10::IValue& leaf) -> c10::IValue {
      if (!leaf.isTensor() || !leaf.toTensor().defined()) return {};
      const auto found = grads_.find(leaf.toTensor().unsafeGetTensorImpl());
      return found != grads_.end() && found->second.defined() ? c10::IValue(found->second) : c10::IValue();
    });
  }

  value::Kwargs of(const value::Kwargs& kwargs) const {
    value::Kwargs grads;
    for (const auto& [name, value] : kwargs) grads[name] = of(value);
    return grads;
  }

 private:
  std::unordered_map<const c10::TensorImpl*, at::Tensor> grads_;
};

// Transposes the list: each argument becomes a tuple over the microbatches.
value::Args over_microbatches(const std::vector<value::Args>& microbatches) {
  std::size_t count = 0;
  for (const value::Args& args : microbatches) count = std::max(count, args.size());
  value::Args all;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<c10::IValue> values;
    for (const value::Args& args : microbatches) values.push_back(i < args.size() ? args[i] : c10::IValue());
    all.emplace_back(c10::ivalue::Tuple::create(std::move(values)));
  }
  return all;
}

value::Kwargs over_microbatches(const std::vector<value::Kwargs>& microbatches) {
  value::Kwargs all;
  for (const value::Kwargs& kwargs : microbatches) {
    for (const auto& [name, value] : kwargs) all.try_emplace(name);
  }
  for (auto& [name, value] : all) {
    std::vector<c10::IValue> values;
    for (const value::Kwargs& kwargs : microbatches) {
      const auto found = kwargs.find(name);
      values.push_back(found == kwargs.end() ? c10::IValue() : found->second);
    }
    value = c10::ivalue::Tuple::create(std::move(values));
  }
  return all;
}

}  // namespace

void return_input_grads(const PipelineSetup& setup, const std::vector<InputGrad>& grads,
                        const UnsplitBatch& input, StepResult& result) {
  const value::Args args = setup.local(StageId(0)) ? input.args : value::Args();
  std::vector<c10::IValue> trees = args;
  for (const auto& [name, value] : input.kwargs) trees.push_back(value);
  for (const auto& [stage, kwargs] : input.stage_kwargs) {
    for (const auto& [name, value] : kwargs) trees.push_back(value);
  }
  const TreeGrads found(grads, trees);
  for (const c10::IValue& arg : args) result.input_grads.push_back(found.of(arg));
  result.kwarg_grads = found.of(input.kwargs);
  for (const PipelineStage& stage : setup.stages) {
    const auto kwargs = input.stage_kwargs.find(stage.index());
    if (kwargs != input.stage_kwargs.end())
      result.stage_kwarg_grads[stage.index()] = found.of(kwargs->second);
  }
}

void return_input_grads(const PipelineSetup& setup, const std::vector<InputGrad>& grads,
                        const Microbatches& input, StepResult& result) {
  UnsplitBatch merged;
  merged.args = over_microbatches(input.args);
  merged.kwargs = over_microbatches(input.kwargs);
  for (const auto& [stage, kwargs] : input.stage_kwargs)
    merged.stage_kwargs[stage] = over_microbatches(kwargs);
  return_input_grads(setup, grads, merged, result);
}

void add_input_grads(const std::vector<InputGrad>& grads) {
  if (grads.empty()) return;
  const Parts parts(grads);
  torch::autograd::backward(parts.inputs, parts.grads);
}

}  // namespace penstock::runtime
