// Type conversion of inputs and outputs of mixed-precision models.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace penstock::parallel {

//! Converts a floating-point tensor to type `to`, if given; returns other tensors unchanged.
inline at::Tensor cast_floating(const at::Tensor& tensor, const std::optional<at::ScalarType>& to) {
  if (!to || !tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == *to) return tensor;
  return tensor.to(*to);
}

}  // namespace penstock::parallel
