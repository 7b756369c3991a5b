// What is known of a tensor without its elements. Stages compare it with what arrives, allocate receive
// buffers from it, and send it ahead of tensors whose shape the peer does not know.
#pragma once

#include <penstock/base/error.h>
#include <penstock/value/tree.h>

#include <ATen/core/Tensor.h>

#include <concepts>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

//! How a distributed tensor lies on the ranks of its mesh.
struct DistributedMeta {
  std::vector<std::string> axes;          //!< names of the mesh's axes
  std::vector<std::int64_t> mesh;         //!< ranks on each
  std::vector<std::string> placements;    //!< on each: `Shard(0)`, `Replicate`, `Partial(sum)`
  std::vector<std::int64_t> local_shape;  //!< of this rank's shard

  //! `DeviceMesh(tp=2) [Shard(0)]`.
  std::string text() const;

  friend bool operator==(const DistributedMeta&, const DistributedMeta&) = default;
};

struct TensorMeta {
  std::vector<std::int64_t> shape;  //!< global, as the strides are
  std::vector<std::int64_t> stride;
  at::ScalarType dtype = at::kFloat;
  at::DeviceType device = at::kCPU;
  bool requires_grad = false;
  std::optional<DistributedMeta> distributed{};  //!< nothing for a plain tensor

  //! The metadata of a defined, strided tensor (UsageError otherwise).
  static TensorMeta of(const at::Tensor& tensor);

  //! An uninitialised tensor with exactly this metadata, strides included, on `on` or on this kind of device.
  //! UsageError for a distributed tensor, which needs its mesh.
  at::Tensor empty(std::optional<at::Device> on = std::nullopt) const;

  //! The same with strides that can be received into: unchanged where no two elements share memory and none
  //! is left out, else contiguous. (An expanded tensor has stride 0 and cannot be written to.)
  TensorMeta dense() const;

  //! The gradient's metadata: as this, but not requiring a gradient itself.
  TensorMeta grad() const;

  std::int64_t numel() const;
  std::size_t nbytes() const;

  //! For example `float32[2, 3]`, with the strides where they are not the contiguous ones.
  std::string text() const;

  friend bool operator==(const TensorMeta&, const TensorMeta&) = default;
};

//! Every difference that matters for the elements: shape, dtype, stride, mesh and placements, each as `shape
//! [2, 3], expected [2, 4]`. Strides of dims with at most one element mean nothing and are not compared, nor
//! is `requires_grad`, which depends on the mode of the run, nor the device, where a message may arrive
//! elsewhere.
std::vector<std::string> differences(const TensorMeta& expected, const TensorMeta& actual);

//! ShapeError with every difference of the tensor at `where`.
void validate_tensor_metadata(const TensorMeta& expected, const at::Tensor& actual, const std::string& where,
                              const ErrorContext& context = {});

//! ShapeError with every difference of every tensor at once. `std::nullopt` and undefined tensors stand for
//! None. Without `paths` the tensors are called `root[i]`.
void validate_tensors_metadata(const std::vector<std::optional<TensorMeta>>& expected,
                               const std::vector<at::Tensor>& actual, const std::string& root,
                               const ErrorContext& context = {}, const std::vector<std::string>& paths = {});

//! A tree's structure and the metadata of its tensors (nothing for other leaves).
struct TreeMeta {
  Structure structure;
  std::vector<std::optional<TensorMeta>> leaves;

  static TreeMeta of(const c10::IValue& tree);
  //! Of the arguments of a stage, which are the items of a tuple (a template, so that a value in braces stays
  //! a value).
  template <std::same_as<std::vector<c10::IValue>> Args>
  static TreeMeta of(const Args& args) {
    return of(c10::IValue(c10::ivalue::Tuple::create(args)));
  }

  friend bool operator==(const TreeMeta&, const TreeMeta&) = default;
};

//! ShapeError if the tree has another structure, or with every difference of every tensor and its place under
//! `root`.
void validate_tree_metadata(const TreeMeta& expected, const c10::IValue& actual, const std::string& root,
                            const ErrorContext& context = {});

//! `float32`, `int64`, `bool`: the names that users of PyTorch know.
std::string dtype_text(at::ScalarType dtype);

}  // namespace penstock
