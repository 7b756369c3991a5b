// Which gradients travel together. The layout depends on the parameters alone, never on timing, so that a
// restarted run sums in the same order as the first.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace penstock {

struct BucketPlan {
  std::vector<std::size_t> members;  //!< places in the list of parameters, in the order of the bucket
};

//! Buckets of one type and device each, filled from the last parameter to the first (backwards reach them in
//! about this order), closed when they have `bytes`, the first of each kind at `first_bytes`; in the order in
//! which they close.
std::vector<BucketPlan> plan_buckets(const std::vector<at::Tensor>& parameters, std::int64_t first_bytes,
                                     std::int64_t bytes);

}  // namespace penstock
