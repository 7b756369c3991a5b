// The reductions of the transports of Penstock.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace penstock::comm {

//! Reduces `next` into `sum`. Averages are sums. Throws UsageError for a reduction that is not supported.
void reduce_into(const at::Tensor& sum, const at::Tensor& next, const c10d::ReduceOp& op);

}  // namespace penstock::comm
