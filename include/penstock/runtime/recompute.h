// Activation recomputation: trade time for memory by keeping only a part's inputs and running its forward
// again when its backward comes. Composes with the split backward: the part is run again in the input half,
// split itself, and its weight half waits with the others.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <vector>

namespace penstock {

struct RecomputeOptions {
  //! Save the state of the random number generators and restore it for the second run, so that dropout
  //! repeats itself. (The default CPU generator is one for the process: where threads are ranks, use `seed`,
  //! under their lock.)
  bool preserve_random = true;
  //! Called before both runs instead, if set: makes the state from a key rather than saving it.
  std::function<void()> seed;
};

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

//! `forward(inputs)`, which keeps nothing for its backward but the inputs. `forward` must give the same
//! result when it is called again; parameters that it uses get their gradients as usual. Floating outputs
//! count as differentiable. Without gradient mode this is a plain call.
std::vector<at::Tensor> recompute(const TensorFunction& forward, const std::vector<at::Tensor>& inputs,
                                  const RecomputeOptions& options = {});

//! The same for value trees.
c10::IValue recompute_tree(const std::function<c10::IValue(const std::vector<c10::IValue>&)>& forward,
                           const std::vector<c10::IValue>& args, const RecomputeOptions& options = {});

}  // namespace penstock
