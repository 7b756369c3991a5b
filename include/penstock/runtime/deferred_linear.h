// A linear layer made for the split backward. An ordinary one is split by the engine, which runs its node
// twice; this one is run once and leaves its weight's matrix product in the queue itself, so that small
// layers split for free.
#pragma once

#include <ATen/core/Tensor.h>

namespace penstock {

//! input · weightᵀ + bias, the gradients bitwise those of torch::linear. `bias` may be undefined.
at::Tensor deferred_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace penstock
