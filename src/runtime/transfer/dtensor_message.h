// Distributed tensors between stages. A message contains the local shard; its metadata contains the
// placements, the mesh axes and the global sizes. The receiving stage rebuilds the tensor on its own mesh.
// Gradients need no metadata: they are returned in the placements of the value, which its stage still has.
#pragma once

#include "base/io/bytes.h"

#include <penstock/runtime/stage.h>
#include <penstock/tensor/mesh.h>
#include <penstock/tensor/placement.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::runtime {

//! The metadata of a distributed tensor, without the ranks of its mesh.
struct DTensorMeta {
  std::vector<std::string> axes;
  std::vector<std::int64_t> shape;       //!< shape of the mesh
  std::vector<std::int64_t> coordinate;  //!< of the sender in the mesh
  tensor::Placements placements;
  std::vector<std::int64_t> sizes;  //!< global sizes of the tensor

  //! The metadata of a distributed tensor; nullopt for a plain one.
  static std::optional<DTensorMeta> of(const at::Tensor& tensor);

  friend bool operator==(const DTensorMeta&, const DTensorMeta&) = default;
};

//! For example `[4, 8] on DeviceMesh(tp=2) with [Shard(0)]`.
std::string to_string(const DTensorMeta& meta);

void write(ByteWriter& out, const DTensorMeta& meta);
DTensorMeta read_dtensor_meta(ByteReader& in);

//! Rebuilds the distributed tensor on the stage's mesh, as a leaf that requires a gradient if `part` does.
//! Throws UsageError if the stage has no mesh with these axes, or if this rank and the sender have different
//! coordinates in it.
at::Tensor assemble_dtensor(const at::Tensor& part, const DTensorMeta& meta, const PipelineStage& stage);

//! Returns the gradient to send back for a value: the local shard in the placements of the value (replicated
//! where the value is partial). The gradient of a plain value is returned unchanged.
at::Tensor local_gradient(const at::Tensor& grad, const at::Tensor& value);

//! What a stage keeps of a distributed value that it sent, to rebuild the gradient that it receives.
struct SentDTensor {
  tensor::DeviceMesh mesh;
  tensor::Placements placements;
  std::vector<std::int64_t> sizes;

  //! Returns null for a plain tensor.
  static std::unique_ptr<const SentDTensor> of(const at::Tensor& value);
};
//! The inverse of `local_gradient`, for the stage that produced the value. The gradient of a plain value
//! (`value` is null) is returned unchanged.
at::Tensor assemble_gradient(const at::Tensor& part, const SentDTensor* value);

}  // namespace penstock::runtime
