// Distributed tensors between stages. What travels is this rank's part and, in the message's form, all else:
// placements, the mesh's axes, global sizes. The receiving stage puts them together on a mesh of its own.
// Gradients need no form: they come back in the placements of the value, which its stage still knows.
#pragma once

#include <penstock/runtime/stage.h>
#include <penstock/tensor/mesh.h>
#include <penstock/tensor/placement.h>
#include <penstock/value/bytes.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

//! A distributed tensor without its part and its ranks.
struct SpreadForm {
  std::vector<std::string> axes;
  std::vector<std::int64_t> shape;       //!< of the mesh
  std::vector<std::int64_t> coordinate;  //!< of the sender in it
  Placements placements;
  std::vector<std::int64_t> sizes;  //!< of the tensor

  //! Of a distributed tensor; nothing for a plain one.
  static std::optional<SpreadForm> of(const at::Tensor& tensor);
  //! `[4, 8] on DeviceMesh(tp=2) with [Shard(0)]`.
  std::string text() const;

  friend bool operator==(const SpreadForm&, const SpreadForm&) = default;
};

void write(ByteWriter& out, const SpreadForm& form);
SpreadForm read_spread_form(ByteReader& in);

//! The distributed tensor on the stage's mesh; a leaf that requires a gradient if the part does. UsageError
//! where the stage has no mesh of these axes, or where this rank stands elsewhere in it than the sender.
at::Tensor put_together(const at::Tensor& part, const SpreadForm& form, const PipelineStage& stage);

//! What is sent back for a value: the gradient's part of this rank, where the value is (whole where that is a
//! partial sum). The gradient of a plain value is what it is.
at::Tensor gradient_part(const at::Tensor& grad, const at::Tensor& value);

//! What is kept of a distributed value that was sent, so that the gradient that comes back can be put
//! together.
struct SentValue {
  DeviceMesh mesh;
  Placements placements;
  std::vector<std::int64_t> sizes;

  //! Null for a plain tensor.
  static std::unique_ptr<const SentValue> of(const at::Tensor& value);
};
//! The inverse of `gradient_part`, for the stage that gave the value. The gradient of a plain value (null) is
//! what it is.
at::Tensor gradient_of_part(const at::Tensor& part, const SentValue* value);

}  // namespace penstock
