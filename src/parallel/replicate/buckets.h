// Assigns gradients to buckets. The assignment depends only on the parameters, never on timing, so that a
// resumed run sums in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace penstock::parallel {

struct BucketPlan {
  std::vector<std::size_t> members;  //!< indices of parameters, in bucket order
};

//! Each bucket has one type and device. Buckets are filled from the last parameter to the first, which is
//! about the order of the backward, and closed at `bytes` (the first per type and device at `first_bytes`).
//! The result is in the order of closing.
std::vector<BucketPlan> plan_buckets(const std::vector<at::Tensor>& parameters, std::int64_t first_bytes,
                                     std::int64_t bytes);

}  // namespace penstock::parallel
