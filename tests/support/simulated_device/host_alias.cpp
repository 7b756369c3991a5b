// CPU tensors over the memory of device tensors.
#include "host_alias.h"

#include "device_allocator.h"
#include "simulation.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>

namespace penstock::test::simulated {
namespace {

at::Tensor with_metadata_of(const at::Tensor& model, c10::Storage storage, c10::DispatchKey key) {
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), model.dtype());
  c10::TensorImpl* const impl = made.unsafeGetTensorImpl();
  impl->set_storage_offset(model.storage_offset());
  impl->set_sizes_and_strides(model.sizes(), model.strides());
  impl->_set_conj(model.is_conj());
  impl->_set_neg(model.is_neg());
  return made;
}

}  // namespace

at::Tensor host_alias(const at::Tensor& tensor) {
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  char* const data = simulation().memory.writable(storage.data());
  auto alias = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                     c10::DataPtr(data, c10::Device(c10::kCPU)),
                                                     c10::GetCPUAllocator(), /*resizable=*/true);
  return with_metadata_of(tensor, c10::Storage(std::move(alias)), c10::DispatchKey::CPU);
}

at::Tensor device_view(const at::Tensor& base, const at::Tensor& alias) {
  return with_metadata_of(alias, base.storage(), c10::DispatchKey::CUDA);
}

at::Tensor device_copy(const at::Tensor& host, c10::Device device, const std::string& operation,
                       Moment moment) {
  const at::Tensor source = host.is_non_overlapping_and_dense() ? host : host.contiguous();
  const c10::DeviceGuard guard(device);
  at::Tensor copy =
      at::detail::empty_strided_generic(source.sizes(), source.strides(), device_allocator(),
                                        c10::DispatchKeySet(c10::DispatchKey::CUDA), source.scalar_type());
  host_alias(copy).copy_(source);
  record_access(copy, true, operation, moment);
  return copy;
}

void grow_storage(const at::Tensor& tensor, std::size_t bytes) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  if (bytes <= storage.nbytes()) return;
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceGuard guard(tensor.device());
  c10::DataPtr larger = device_allocator()->allocate(bytes);
  if (storage.nbytes() > 0) {
    record_access(tensor, false, "aten::resize_", launch(tensor.device().index()));
    device_allocator()->copy_data(larger.get(), storage.data(), storage.nbytes());
  }
  storage.set_data_ptr_noswap(std::move(larger));
  storage.set_nbytes(bytes);
}

}  // namespace penstock::test::simulated
