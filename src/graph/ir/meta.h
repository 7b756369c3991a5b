// Runs operators on meta tensors, for captures without memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace c10 {
class OperatorHandle;
}

namespace penstock::graph {

//! Returns a meta tensor with the same sizes, strides and dtype.
at::Tensor meta_like(const at::Tensor& tensor);

//! Replaces the device arguments on the stack by the meta device.
void redirect_devices(const c10::OperatorHandle& op, torch::jit::Stack& stack);

//! Runs the operator on meta copies of its arguments: with a shape rule from meta.cpp, the meta kernel of
//! libtorch, or on zeros, in this order. Throws UsageError if none of them works.
void call_without_memory(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace penstock::graph
