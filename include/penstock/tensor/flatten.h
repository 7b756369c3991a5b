// Taking a distributed tensor apart into this rank's part and what is needed to put it together again: for
// what works on plain tensors, as data parallelism over a tensor-parallel model does.
#pragma once

#include <penstock/tensor/dtensor.h>

#include <optional>
#include <vector>

namespace penstock {

//! All of a distributed tensor but its elements.
struct DTensorForm {
  DeviceMesh mesh;
  Placements placements;
  std::vector<std::int64_t> sizes;

  friend bool operator==(const DTensorForm& a, const DTensorForm& b) {
    return a.mesh == b.mesh && a.placements == b.placements && a.sizes == b.sizes;
  }
};

struct FlatDTensor {
  at::Tensor local;
  std::optional<DTensorForm> form;  //!< nothing for a plain tensor
};

//! The part of this rank, a leaf that shares memory with the tensor and requires a gradient if the tensor
//! does. A plain tensor is its own part.
FlatDTensor flatten_dtensor(const at::Tensor& tensor);

//! The inverse; the gradient flows to `local`.
at::Tensor unflatten_dtensor(const at::Tensor& local, const DTensorForm& form);

//! Waits until a gradient that is still on its way is there, and gives this rank's part of it: the tensor
//! that replicas average. Undefined and plain gradients are given back as they are.
at::Tensor synced_gradient(const at::Tensor& grad);

}  // namespace penstock
