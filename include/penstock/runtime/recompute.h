// Activation recomputation: keeps only the inputs of a function and runs it again before its backward
// pass. This saves memory and costs time. It works with the split backward pass: the function runs again in
// the input half, its own backward pass is split, and its weight half is queued with the others.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace penstock::runtime {

//! How random operations repeat in the second run.
struct RecomputeOptions {
  //! Save the state of the random number generators and restore it for the second run, so that dropout masks
  //! repeat: of the thread's RandomScope if there is one (stages run in one), else of libtorch's default
  //! generators. The default CPU generator is shared by the whole process: with thread ranks, use a
  //! RandomScope, or open one inside the function and set this to false.
  bool preserve_random = true;
  //! If set, called before both runs instead: seeds the generators from a key rather than saving their state.
  std::function<void()> seed{};
};

//! A function of tensors, for `recompute`.
using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

//! Returns `forward(inputs)` and keeps only the inputs for the backward pass. `forward` must be
//! deterministic: a second call must return the same result. Parameters that it uses get their gradients as
//! usual. All floating-point outputs are treated as differentiable. The second run has the autocast modes of
//! the first. In no-grad mode this is a plain call.
std::vector<at::Tensor> recompute(const TensorFunction& forward, const std::vector<at::Tensor>& inputs,
                                  const RecomputeOptions& options = {});

//! The same for value trees.
c10::IValue recompute_tree(const std::function<c10::IValue(const std::vector<c10::IValue>&)>& forward,
                           const std::vector<c10::IValue>& args, const RecomputeOptions& options = {});

//! Recomputes the activations of each `call(module, …)` (module_call.h) from now on. Has no effect on
//! `module->forward(…)`. A module must not change its buffers in a forward pass, as batch norm does: the
//! second run would change them again.
void recompute_calls(const std::shared_ptr<torch::nn::Module>& module);

}  // namespace penstock::runtime
