// Copies between devices and between a device and the host.
#pragma once

#include <ATen/core/Tensor.h>

namespace penstock::test::simulated {

at::Tensor& copy_kernel(at::Tensor& self, const at::Tensor& source, bool non_blocking);
at::Scalar item_kernel(const at::Tensor& self);

}  // namespace penstock::test::simulated
