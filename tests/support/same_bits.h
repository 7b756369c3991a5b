// Bitwise comparison of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstring>

namespace penstock::test {

//! Bitwise equality, including NaN.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

}  // namespace penstock::test
