// Sizes and strides of an operator's results as libtorch gives them to dense tensors. They must not depend on
// one rank's shard: shards of different ranks have different sizes, and a dim of one element has any stride.
#pragma once

#include "tensor/layout.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

namespace penstock {

struct GlobalLayout {
  Sizes sizes, strides;
};

//! Runs the operator on tensors of the same global sizes and strides without memory. One layout for each
//! tensor among the results. Throws what libtorch throws for dense tensors (a view that is not one).
std::vector<GlobalLayout> dense_layouts(const c10::OperatorHandle& op, const c10::IValue* args,
                                        std::size_t count);

//! The strides of a copy of `source`, as clone, to and empty_like make it.
Sizes copied_strides(const at::Tensor& source, std::optional<at::MemoryFormat> format);

//! The strides of a pointwise operator's results of these sizes.
Sizes pointwise_strides(const c10::IValue* args, std::size_t count, c10::IntArrayRef sizes);

}  // namespace penstock
