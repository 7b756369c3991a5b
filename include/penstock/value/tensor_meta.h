// Tensor metadata: everything about a tensor except its elements. Stages compare it with received values,
// allocate receive buffers from it, and send it ahead of tensors whose shape the receiver does not know.
#pragma once

#include <penstock/base/error.h>
#include <penstock/value/tree.h>

#include <ATen/core/Tensor.h>

#include <concepts>
#include <optional>
#include <string>
#include <vector>

namespace penstock::value {

//! The mesh and placements of a distributed tensor.
struct DistributedMeta {
  std::vector<std::string> axes;          //!< names of the mesh axes
  std::vector<std::int64_t> mesh;         //!< size of each axis
  std::vector<std::string> placements;    //!< per axis: `Shard(0)`, `Replicate`, `Partial(sum)`
  std::vector<std::int64_t> local_shape;  //!< shape of the local shard

  friend bool operator==(const DistributedMeta&, const DistributedMeta&) = default;
};

//! For example `DeviceMesh(tp=2) [Shard(0)]`.
std::string to_string(const DistributedMeta& meta);

//! The metadata of one tensor.
struct TensorMeta {
  std::vector<std::int64_t> shape;  //!< global shape; strides are global too
  std::vector<std::int64_t> stride;
  at::ScalarType dtype = at::kFloat;
  at::DeviceType device = at::kCPU;
  bool requires_grad = false;
  std::optional<DistributedMeta> distributed{};  //!< nullopt for a plain tensor

  //! The metadata of a defined, strided tensor. Throws UsageError for other tensors.
  static TensorMeta of(const at::Tensor& tensor);

  //! Returns an uninitialized tensor with exactly this metadata, including strides, on `on` (by default, on
  //! `device`). Throws UsageError for a distributed tensor, which needs its mesh.
  at::Tensor empty(std::optional<at::Device> on = std::nullopt) const;

  //! Returns metadata with strides that a receive can write to: unchanged if the elements neither overlap nor
  //! leave gaps, otherwise contiguous. (An expanded tensor has stride 0 and cannot be written to.)
  TensorMeta dense() const;

  //! The metadata of the gradient: the same, but with `requires_grad` false.
  TensorMeta grad() const;

  std::int64_t numel() const;
  std::size_t nbytes() const;

  friend bool operator==(const TensorMeta&, const TensorMeta&) = default;
};

//! For example `float32[2, 3]`; includes the strides if they are not contiguous.
std::string to_string(const TensorMeta& meta);

//! Returns every difference in shape, dtype, stride, mesh and placements, each as `shape [2, 3], expected [2,
//! 4]`. Strides of dims of size 0 or 1 are not compared: they have no meaning. Neither is `requires_grad`,
//! which depends on the mode of the run, nor the device, because a message may be received on another device.
std::vector<std::string> differences(const TensorMeta& expected, const TensorMeta& actual);

//! Checks the metadata of one tensor. ShapeError lists every difference; `where` is the name of the tensor.
void validate_tensor_metadata(const TensorMeta& expected, const at::Tensor& actual, const std::string& where,
                              const ErrorContext& context = {});

//! Checks the metadata of several tensors. One ShapeError lists every difference of every tensor.
//! `std::nullopt` and undefined tensors stand for None. Without `paths`, the tensors are named `root[i]`.
void validate_tensors_metadata(const std::vector<std::optional<TensorMeta>>& expected,
                               const std::vector<at::Tensor>& actual, const std::string& root,
                               const ErrorContext& context = {}, const std::vector<std::string>& paths = {});

//! The structure of a tree and the metadata of its tensors (nullopt for other leaves).
struct TreeMeta {
  Structure structure;
  std::vector<std::optional<TensorMeta>> leaves;

  //! The metadata of a tree.
  static TreeMeta of(const c10::IValue& tree);
  //! The metadata of the arguments of a stage, as a tuple. (A template, so that a value in braces converts to
  //! an IValue.)
  template <std::same_as<std::vector<c10::IValue>> Args>
  static TreeMeta of(const Args& args) {
    return of(c10::IValue(c10::ivalue::Tuple::create(args)));
  }

  friend bool operator==(const TreeMeta&, const TreeMeta&) = default;
};

//! Checks the structure and the tensors of a tree. Throws ShapeError if the structure differs. Otherwise, one
//! ShapeError lists every difference of every tensor, with paths that start with `root`.
void validate_tree_metadata(const TreeMeta& expected, const c10::IValue& actual, const std::string& root,
                            const ErrorContext& context = {});

//! The PyTorch name of a dtype: `float32`, `int64`, `bool`.
std::string dtype_name(at::ScalarType dtype);

}  // namespace penstock::value
