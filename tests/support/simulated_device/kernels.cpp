// Kernels that cannot be CPU operators: allocation, metadata, copies, hidden random numbers.
#include "attention.h"
#include "copy.h"
#include "device_allocator.h"
#include "fallback.h"
#include "host_alias.h"
#include "registration.h"
#include "simulation.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <tuple>

namespace penstock::test::simulated {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(!layout || *layout == c10::kStrided, "simulated devices have only strided tensors");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor empty_kernel(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                        std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                        std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  check_options(layout, pin_memory);
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided_kernel(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                                std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, device_allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

const at::Tensor& resize_kernel(const at::Tensor& self, c10::SymIntArrayRef sizes,
                                std::optional<c10::MemoryFormat> format) {
  const c10::IntArrayRef concrete = C10_AS_INTARRAYREF_SLOW(sizes);
  grow_storage(self, at::detail::computeStorageNbytesContiguous(
                         concrete, self.itemsize(), static_cast<std::size_t>(self.storage_offset())));
  self.unsafeGetTensorImpl()->set_sizes_contiguous(concrete);
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_empty_kernel(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  const c10::Storage storage(c10::Storage::use_byte_size_t(), 0, device_allocator(), /*resizable=*/true);
  return self.set_(storage, 0, {0}, {});
}

// The CPU kernel of an operator that changes only metadata.
void keep_memory(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

void record_stream_kernel(at::Tensor& self, c10::Stream stream) {
  record_data_on_stream(self.storage().data_ptr(), stream);
}

// The CPU kernel would draw from the CPU's generator.
std::tuple<at::Tensor, at::Tensor> dropout_kernel(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  if (!train.value_or(true) || p == 0) return {input.clone(), at::ones_like(input, at::kBool)};
  at::Tensor mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  return {input.mul(mask).mul_(scale), mask};
}

void add_kernels(torch::Library& aten) {
  aten.impl("empty.memory_format", empty_kernel);
  aten.impl("empty_strided", empty_strided_kernel);
  aten.impl("resize_", resize_kernel);
  aten.impl("set_", set_empty_kernel);
  for (const char* name : {"as_strided", "view", "_reshape_alias", "unfold", "is_set_to",
                           "set_.source_Tensor", "set_.source_Storage", "set_.source_Storage_storage_offset"})
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&keep_memory>());
  aten.impl("copy_", copy_kernel);
  aten.impl("_local_scalar_dense", item_kernel);
  aten.impl("record_stream", record_stream_kernel);
  aten.impl("native_dropout", dropout_kernel);
  add_attention_kernels(aten);
}

}  // namespace

void record_data_on_stream(const c10::DataPtr& data, const c10::Stream& stream) {
  device_allocator()->recordStream(data, stream);
}

void register_kernels() {
  // Never destroyed: a library removes its kernels at its end.
  static auto* const aten =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  static auto* const others =
      new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  add_kernels(*aten);
  others->fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

}  // namespace penstock::test::simulated
