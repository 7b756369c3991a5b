// A linear layer for the split backward pass. The engine splits an ordinary linear layer by running its node
// twice. This one runs once and queues its weight matmul itself, so that splitting small layers costs nothing
// extra.
#pragma once

#include <ATen/core/Tensor.h>

namespace penstock::runtime {

//! Computes input · weightᵀ + bias. Gradients are bitwise identical to those of torch::linear. `bias` may be
//! undefined.
at::Tensor deferred_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace penstock::runtime
