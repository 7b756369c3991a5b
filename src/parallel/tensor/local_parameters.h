// Distributed parameters as seen by data parallelism: local shards, which replicas share.
#pragma once

#include <penstock/tensor/flatten.h>

#include <ATen/core/Tensor.h>

#include <optional>

namespace penstock::parallel {

//! The local shard of a parameter's gradient, redistributed to the placements in `spec` (the parameter's
//! metadata) if necessary. The gradient of a plain parameter is returned unchanged; undefined if there is
//! none.
at::Tensor local_gradient(const at::Tensor& parameter, const std::optional<tensor::DTensorSpec>& spec);

//! Builds a distributed tensor that shares memory with the local shard `part`. Returns `part` if there is no
//! metadata.
at::Tensor with_spec(const at::Tensor& part, const std::optional<tensor::DTensorSpec>& spec);

//! A tensor without elements of the same type, device and mesh; a parameter accepts it as its data.
at::Tensor empty_of(const at::TensorOptions& options, const std::optional<tensor::DTensorSpec>& spec);

}  // namespace penstock::parallel
