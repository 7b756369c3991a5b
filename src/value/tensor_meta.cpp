// Tensor metadata and its validation.
#include "base/text.h"
#include "value/distributed_values.h"

#include <penstock/value/tensor_meta.h>

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <numeric>

namespace penstock::value {
namespace {

std::vector<std::int64_t> contiguous_stride(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> stride(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    stride[i] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return stride;
}

bool same_layout(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& a,
                 const std::vector<std::int64_t>& b) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1 && a[i] != b[i]) return false;
  }
  return true;
}

// Sorted from the innermost dim outwards, each stride must equal the number of elements inside it.
bool is_dense(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& stride) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  std::vector<std::size_t> dims(shape.size());
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  std::sort(dims.begin(), dims.end(), [&](std::size_t a, std::size_t b) { return stride[a] < stride[b]; });
  std::int64_t inside = 1;
  for (const std::size_t dim : dims) {
    if (shape[dim] == 1) continue;
    if (stride[dim] != inside) return false;
    inside *= shape[dim];
  }
  return true;
}

void refuse(const std::vector<std::string>& faults, const std::string& what, const ErrorContext& context) {
  if (faults.empty()) return;
  throw ShapeError(what + ": " + join(faults, "; "), context);
}

std::string fault_text(const std::string& path, const std::vector<std::string>& parts) {
  return path + " has " + join(parts, ", ");
}

void compare(const std::optional<TensorMeta>& expected, const std::optional<TensorMeta>& actual,
             const std::string& path, std::vector<std::string>& faults) {
  if (!expected && !actual) return;
  if (!expected || !actual) {
    faults.push_back(path + " is " + (actual ? to_string(*actual) : "not a tensor") + ", expected " +
                     (expected ? to_string(*expected) : "no tensor"));
    return;
  }
  if (const auto parts = differences(*expected, *actual); !parts.empty())
    faults.push_back(fault_text(path, parts));
}

}  // namespace

TensorMeta TensorMeta::of(const at::Tensor& tensor) {
  if (!tensor.defined()) throw UsageError("an undefined tensor has no metadata");
  if (tensor.layout() != at::kStrided) {
    throw UsageError("only strided tensors have metadata", {}, "convert the tensor with to_dense()");
  }
  TensorMeta meta{tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(), tensor.device().type(),
                  tensor.requires_grad()};
  if (const DistributedValues* values = distributed_values(tensor)) meta.distributed = values->meta(tensor);
  return meta;
}

at::Tensor TensorMeta::empty(std::optional<at::Device> on) const {
  if (distributed) {
    throw UsageError(
        "a distributed tensor of " + to_string(*this) + " cannot be created from its metadata alone", {},
        "create it on its mesh: distributed_zeros, distributed_full or from_local");
  }
  at::Tensor tensor =
      at::empty_strided(shape, stride, at::TensorOptions(on.value_or(at::Device(device))).dtype(dtype));
  if (requires_grad && (tensor.is_floating_point() || tensor.is_complex())) tensor.set_requires_grad(true);
  return tensor;
}

TensorMeta TensorMeta::dense() const {
  TensorMeta meta = *this;
  if (!is_dense(shape, stride)) meta.stride = contiguous_stride(shape);
  return meta;
}

TensorMeta TensorMeta::grad() const {
  TensorMeta meta = dense();
  meta.requires_grad = false;
  return meta;
}

std::int64_t TensorMeta::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::size_t TensorMeta::nbytes() const {
  return static_cast<std::size_t>(numel()) * c10::elementSize(dtype);
}

std::string to_string(const TensorMeta& meta) {
  std::string text = dtype_name(meta.dtype) + format_shape(meta.shape);
  if (!same_layout(meta.shape, meta.stride, contiguous_stride(meta.shape)))
    text += " stride " + format_shape(meta.stride);
  if (meta.distributed) text += " on " + to_string(*meta.distributed);
  return text;
}

std::string to_string(const DistributedMeta& meta) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < meta.mesh.size(); ++i) {
    const bool named = i < meta.axes.size() && !meta.axes[i].empty();
    parts.push_back(str_cat((named ? meta.axes[i] + "=" : ""), meta.mesh[i]));
  }
  return "DeviceMesh(" + join(parts, ", ") + ") [" + join(meta.placements, ", ") + "]";
}

std::vector<std::string> differences(const TensorMeta& expected, const TensorMeta& actual) {
  std::vector<std::string> found;
  const auto add = [&](const char* what, const std::string& is, const std::string& should) {
    found.push_back(std::string(what) + " " + is + ", expected " + should);
  };
  if (actual.shape != expected.shape) add("shape", format_shape(actual.shape), format_shape(expected.shape));
  if (actual.dtype != expected.dtype) add("dtype", dtype_name(actual.dtype), dtype_name(expected.dtype));
  const bool comparable = actual.shape == expected.shape || actual.shape.size() == expected.shape.size();
  const bool same_stride = actual.shape == expected.shape
                               ? same_layout(expected.shape, expected.stride, actual.stride)
                               : actual.stride == expected.stride;
  if (comparable && !same_stride) add("stride", format_shape(actual.stride), format_shape(expected.stride));
  const auto placements_text = [](const TensorMeta& meta) {
    return meta.distributed ? to_string(*meta.distributed) : std::string("none (a plain tensor)");
  };
  if (placements_text(actual) != placements_text(expected))
    add("placements", placements_text(actual), placements_text(expected));
  return found;
}

void validate_tensor_metadata(const TensorMeta& expected, const at::Tensor& actual, const std::string& where,
                              const ErrorContext& context) {
  validate_tensors_metadata({expected}, {actual}, where, context, {where});
}

void validate_tensors_metadata(const std::vector<std::optional<TensorMeta>>& expected,
                               const std::vector<at::Tensor>& actual, const std::string& root,
                               const ErrorContext& context, const std::vector<std::string>& paths) {
  std::vector<std::string> faults;
  if (expected.size() != actual.size()) {
    faults.push_back(str_cat(root, " has ", actual.size(), " tensors, expected ", expected.size()));
  }
  for (std::size_t i = 0; i < std::min(expected.size(), actual.size()); ++i) {
    const std::string path = i < paths.size() ? paths[i] : str_cat(root, "[", i, "]");
    compare(expected[i], actual[i].defined() ? std::optional(TensorMeta::of(actual[i])) : std::nullopt, path,
            faults);
  }
  refuse(faults, "tensors do not match the expected metadata", context);
}

TreeMeta TreeMeta::of(const c10::IValue& tree) {
  FlatTree flat = flatten(tree);
  TreeMeta meta{std::move(flat.structure), {}};
  for (const c10::IValue& leaf : flat.leaves) {
    const bool tensor = leaf.isTensor() && leaf.toTensor().defined();
    meta.leaves.push_back(tensor ? std::optional(TensorMeta::of(leaf.toTensor())) : std::nullopt);
  }
  return meta;
}

void validate_tree_metadata(const TreeMeta& expected, const c10::IValue& actual, const std::string& root,
                            const ErrorContext& context) {
  const TreeMeta meta = TreeMeta::of(actual);
  if (!(meta.structure == expected.structure)) {
    throw ShapeError(root + " has the structure " + to_string(meta.structure) + ", expected " +
                         to_string(expected.structure),
                     context);
  }
  const std::vector<std::string> paths = expected.structure.paths(root);
  std::vector<std::string> faults;
  for (std::size_t i = 0; i < paths.size(); ++i)
    compare(expected.leaves[i], meta.leaves[i], paths[i], faults);
  refuse(faults, "tensors do not match the expected metadata", context);
}

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kHalf:
      return "float16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kComplexHalf:
      return "complex32";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    case at::kBool:
      return "bool";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return to_lower(c10::toString(dtype));
  }
}

}  // namespace penstock::value
