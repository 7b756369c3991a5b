// Layouts of results, computed on the meta device.
#include "tensor/layout/result_layout.h"

#include "tensor/dispatch/dtensor_impl.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/MemoryFormat.h>

namespace penstock::tensor {
namespace {

at::Tensor without_memory(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::Tensor(at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
}

c10::IValue without_memory(const c10::IValue& value) {
  if (value.isTensor()) return without_memory(value.toTensor());
  if (value.isTensorList()) {
    std::vector<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(without_memory(tensor));
    return list;
  }
  return value;
}

GlobalLayout layout_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {Sizes(tensor.sizes().begin(), tensor.sizes().end()),
          Sizes(tensor.strides().begin(), tensor.strides().end())};
}

//! Calls `body` for each defined tensor argument.
template <class Body>
void for_each_tensor(const c10::IValue* args, std::size_t count, const Body& body) {
  for (std::size_t i = 0; i < count; ++i) {
    if (args[i].isTensor() && args[i].toTensor().defined()) body(args[i].toTensor());
  }
}

}  // namespace

std::vector<GlobalLayout> dense_layouts(const c10::OperatorHandle& op, const c10::IValue* args,
                                        std::size_t count) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  torch::jit::Stack stack;
  stack.reserve(count);
  for (std::size_t i = 0; i < count; ++i) stack.push_back(without_memory(args[i]));
  op.callBoxed(&stack);
  std::vector<GlobalLayout> layouts;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) layouts.push_back(layout_of(value.toTensor()));
    if (!value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorVector()) layouts.push_back(layout_of(tensor));
  }
  return layouts;
}

Sizes copied_strides(const at::Tensor& source, std::optional<at::MemoryFormat> format) {
  const c10::IntArrayRef sizes = source.sizes();
  const auto owned = [](c10::IntArrayRef strides) { return Sizes(strides.begin(), strides.end()); };
  switch (format.value_or(at::MemoryFormat::Preserve)) {
    case at::MemoryFormat::Preserve:
      if (source.is_non_overlapping_and_dense()) return owned(source.strides());
      return owned(at::infer_dense_strides(sizes, source.strides()));
    case at::MemoryFormat::ChannelsLast:
      return owned(c10::get_channels_last_strides_2d(sizes));
    case at::MemoryFormat::ChannelsLast3d:
      return owned(c10::get_channels_last_strides_3d(sizes));
    default:
      return dense_strides(sizes, {});
  }
}

Sizes pointwise_strides(const c10::IValue* args, std::size_t count, c10::IntArrayRef sizes) {
  bool contiguous = true, alike = true, channels_last = sizes.size() == 4;
  const at::Tensor* first = nullptr;
  for_each_tensor(args, count, [&](const at::Tensor& tensor) {
    contiguous = contiguous && tensor.is_contiguous();
    // Dims of one element do not count, so these strides may be neither equal nor those of the result.
    channels_last =
        channels_last && tensor.sizes() == sizes && tensor.is_contiguous(at::MemoryFormat::ChannelsLast);
    if (tensor.dim() == 0) return;
    if (!first) first = &tensor;
    alike = alike && tensor.sizes() == sizes && tensor.strides() == first->strides();
  });
  if (contiguous || !first) return dense_strides(sizes, {});
  if (channels_last) return copied_strides(*first, at::MemoryFormat::ChannelsLast);
  if (alike && first->is_non_overlapping_and_dense())
    return Sizes(first->strides().begin(), first->strides().end());
  // libtorch's kernels allocate their results with it. Not all of them support meta tensors.
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).declare_static_dtype_and_device(at::kFloat, at::kMeta);
  config.add_owned_output(at::Tensor());
  for_each_tensor(args, count,
                  [&](const at::Tensor& tensor) { config.add_owned_const_input(without_memory(tensor)); });
  const at::TensorIterator iterator = config.build();
  const c10::IntArrayRef strides = iterator.output().strides();
  return Sizes(strides.begin(), strides.end());
}

}  // namespace penstock::tensor
