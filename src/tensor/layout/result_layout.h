// Sizes and strides that libtorch gives the results of an operator on dense tensors. They must not be derived
// from a local shard: shards differ in size, and the stride of a dim with one element is arbitrary.
#pragma once

#include "tensor/layout/layout.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

namespace penstock::tensor {

struct GlobalLayout {
  Sizes sizes, strides;
};

//! Runs the operator on meta tensors of the same global sizes and strides. Returns one layout per result
//! tensor. Throws the libtorch error for dense tensors (such as an invalid view).
std::vector<GlobalLayout> dense_layouts(const c10::OperatorHandle& op, const c10::IValue* args,
                                        std::size_t count);

//! The strides of a copy of `source`, as made by clone, to and empty_like.
Sizes copied_strides(const at::Tensor& source, std::optional<at::MemoryFormat> format);

//! The strides of the result of a pointwise operator with these sizes.
Sizes pointwise_strides(const c10::IValue* args, std::size_t count, c10::IntArrayRef sizes);

}  // namespace penstock::tensor
