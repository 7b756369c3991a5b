// Tensors with predictable bytes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace penstock::test {

//! A tensor whose bytes are 0, 1, 2, … modulo 251 (for bools 0, 1, 0, …), as in make_files.py.
inline at::Tensor counted(const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions(dtype));
  auto* bytes = static_cast<std::uint8_t*>(tensor.data_ptr());
  for (std::size_t i = 0; i < tensor.nbytes(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i % (dtype == at::kBool ? 2 : 251));
  return tensor;
}

}  // namespace penstock::test
