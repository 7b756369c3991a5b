// Operators on tensors without memory, for captures that compute nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace c10 {
class OperatorHandle;
}

namespace penstock {

//! A tensor of the same sizes, strides and dtype on the meta device.
at::Tensor meta_twin(const at::Tensor& tensor);

//! Makes operators that take a device use the meta device.
void redirect_devices(const c10::OperatorHandle& op, torch::jit::Stack& stack);

//! Runs the operator on twins of its arguments: by a rule of ours where libtorch has none or is slow, else by
//! libtorch's own. UsageError where there is neither.
void call_without_memory(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace penstock
