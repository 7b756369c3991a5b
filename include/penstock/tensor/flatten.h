// Splits a distributed tensor into its local shard and the metadata that rebuilds it. Code that works on
// plain tensors needs this, such as data parallelism over a tensor-parallel model.
#pragma once

#include <penstock/tensor/dtensor.h>

#include <optional>
#include <vector>

namespace penstock::tensor {

//! Metadata of a distributed tensor: everything except its elements.
struct DTensorSpec {
  DeviceMesh mesh;
  Placements placements;
  std::vector<std::int64_t> sizes;

  friend bool operator==(const DTensorSpec& a, const DTensorSpec& b) {
    return a.mesh == b.mesh && a.placements == b.placements && a.sizes == b.sizes;
  }
};

//! A local shard and the metadata of its tensor.
struct FlatDTensor {
  at::Tensor local;
  std::optional<DTensorSpec> spec;  //!< empty for a plain tensor
};

//! Returns the local shard: a leaf that shares memory with the tensor and requires a gradient if the tensor
//! does. A plain tensor is returned as it is.
FlatDTensor flatten_dtensor(const at::Tensor& tensor);

//! The inverse of flatten_dtensor. The gradient flows to `local`.
at::Tensor unflatten_dtensor(const at::Tensor& local, const DTensorSpec& spec);

//! Waits for pending communication of the gradient and returns its local shard, the tensor that replicas
//! average. Undefined and plain gradients are returned unchanged.
at::Tensor synced_gradient(const at::Tensor& grad);

}  // namespace penstock::tensor
