// The operations on distributed tensors that splitting, merging and metadata need. The module that defines
// distributed tensors depends on this one, so it registers these functions with its first mesh.
#pragma once

#include "value/row_order.h"

#include <penstock/base/error.h>
#include <penstock/value/tensor_meta.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace penstock::value {

struct DistributedValues {
  bool (*is)(const at::Tensor& tensor);
  DistributedMeta (*meta)(const at::Tensor& tensor);
  //! The global rows of each chunk that `split` returns. Throws ShapeError if a chunk would be empty.
  std::vector<std::int64_t> (*chunk_rows)(const at::Tensor& tensor, int chunks, std::int64_t dim,
                                          const ErrorContext& context);
  //! The sizes of all shards along a dim, in element order.
  std::vector<std::int64_t> (*shards)(const at::Tensor& tensor, std::int64_t dim);
  //! Splits each local shard, without communication; placements do not change. Differentiable.
  std::vector<at::Tensor> (*split)(const at::Tensor& tensor, int chunks, std::int64_t dim);
  //! Concatenates chunks; the placements do not change. Without a batch, the inverse of `split`; otherwise in
  //! the row order of the batch, which may need communication. Throws UsageError if the tensors are not
  //! all distributed in the same way.
  at::Tensor (*merge)(const std::vector<at::Tensor>& tensors, std::int64_t dim, const BatchRows* batch,
                      const ErrorContext& context);
};

void register_distributed_values(const DistributedValues& values);

//! Null for a plain tensor.
const DistributedValues* distributed_values(const at::Tensor& tensor);

}  // namespace penstock::value
