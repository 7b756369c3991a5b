// Lookups in embedding tables sharded by rows. libtorch's derivative allocates the gradient of the full
// table; here each rank accumulates only the gradients of its own rows.
#pragma once

#include "tensor/dispatch/dtensor_impl.h"

namespace penstock::tensor {

//! Looks up indices in the rows `range` of a table; other indices give zeros. All tensors are plain.
at::Tensor embed_rows(const at::Tensor& rows, const at::Tensor& indices, const Interval& range);

//! embedding(weight, indices) of distributed tensors. On each axis the weight is sharded by rows or features,
//! or the indices are sharded, or everything is replicated.
at::Tensor look_up(const at::Tensor& weight, const at::Tensor& indices, std::int64_t padding,
                   bool by_frequency);

}  // namespace penstock::tensor
