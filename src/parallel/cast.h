// Conversion of floating-point tensors where a mixed precision model is entered and left.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace penstock {

//! The tensor in type `to`, if it has floating-point elements and `to` says one.
inline at::Tensor cast_floating(const at::Tensor& tensor, const std::optional<at::ScalarType>& to) {
  if (!to || !tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == *to) return tensor;
  return tensor.to(*to);
}

}  // namespace penstock
