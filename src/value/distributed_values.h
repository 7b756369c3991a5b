// What splitting, merging and metadata ask of distributed tensors. The module that makes them is above this
// one: it registers these functions with its first mesh.
#pragma once

#include <penstock/base/error.h>
#include <penstock/value/tensor_meta.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace penstock {

struct DistributedValues {
  bool (*is)(const at::Tensor& tensor);
  DistributedMeta (*meta)(const at::Tensor& tensor);
  //! The global rows of each chunk that `split` gives. ShapeError where a chunk would have none.
  std::vector<std::int64_t> (*chunk_rows)(const at::Tensor& tensor, int chunks, std::int64_t dim,
                                          const ErrorContext& context);
  //! The sizes of all shards of a dim, in the order of its elements.
  std::vector<std::int64_t> (*shards)(const at::Tensor& tensor, std::int64_t dim);
  //! Each rank's shard is split; nothing moves, placements stay. Differentiable.
  std::vector<at::Tensor> (*split)(const at::Tensor& tensor, int chunks, std::int64_t dim);
  //! The inverse. UsageError for tensors that are not all distributed in the same way.
  at::Tensor (*merge)(const std::vector<at::Tensor>& tensors, std::int64_t dim, const ErrorContext& context);
};

void register_distributed_values(const DistributedValues& values);

//! Null for a plain tensor.
const DistributedValues* distributed_values(const at::Tensor& tensor);

}  // namespace penstock
