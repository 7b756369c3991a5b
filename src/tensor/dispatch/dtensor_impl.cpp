// The TensorImpl of distributed tensors: copies share the local shard, there is no storage, and memory access
// throws.
#include "tensor/dispatch/dtensor_impl.h"

#include <penstock/base/error.h>

#include <ATen/autocast_mode.h>

namespace penstock::tensor {
namespace {

// With the autocast key of the device. A tensor without memory counts as one of the CPU.
c10::DispatchKeySet keys_on(c10::Device device) {
  constexpr c10::DispatchKeySet own{kBackendKey, kBeforeKey};
  if (device.is_cpu() || device.is_meta()) return own.add(c10::DispatchKey::AutocastCPU);
  return own.add(at::autocast::get_autocast_dispatch_key_from_device_type(device.type()));
}

std::string no_memory_text() {
  return std::string(kNoMemory) +
         ": its elements are stored on the ranks of a mesh. Print it with penstock::tensor::to_string, save "
         "it with a checkpoint, or call full_tensor() or to_local().";
}

}  // namespace

at::Tensor PendingLocal::get() {
  const std::lock_guard lock(mutex_);
  if (finish_) {
    work_.wait();
    result_ = finish_();
    finish_ = nullptr;
  }
  return result_;
}

DTensorImpl::DTensorImpl(LocalShard shard, MeshPtr mesh, Placements placements, at::ScalarType dtype,
                         at::Device device, c10::IntArrayRef sizes, c10::IntArrayRef strides)
    : c10::TensorImpl(keys_on(device), c10::scalarTypeToTypeMeta(dtype), device),
      shard_(std::move(shard)),
      mesh_(std::move(mesh)),
      placements_(std::move(placements)) {
  set_storage_access_should_throw();
  set_sizes_and_strides(sizes, strides);
}

DTensorImpl::DTensorImpl(at::Tensor local, const DTensorImpl& like)
    : c10::TensorImpl(keys_on(local.device()), local.dtype(), local.device()),
      mesh_(like.mesh_),
      placements_(like.placements_) {
  set_storage_access_should_throw();
  sizes_and_strides_ = like.sizes_and_strides_;
  numel_ = like.numel_;
  refresh_contiguous();
  shard_.local = std::move(local);
}

bool DTensorImpl::has_storage() const {
  if (explained_.load(std::memory_order_acquire)) return false;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!explained_.load(std::memory_order_relaxed)) {
    // NOLINTNEXTLINE: set lazily, because the text costs two allocations that few tensors need
    const_cast<DTensorImpl*>(this)->release_storage_and_set_meta_custom_data_ptr_error_msg_(no_memory_text());
    explained_.store(true, std::memory_order_release);
  }
  return false;
}

const c10::Storage& DTensorImpl::storage() const {
  has_storage();
  return c10::TensorImpl::storage();  // throws
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                         bool allow_change) const {
  auto copy = c10::make_intrusive<DTensorImpl>(shard_, mesh_, placements_, c10::typeMetaToScalarType(dtype()),
                                               device(), sizes(), strides());
  if (!copy->is_inference()) copy->set_version_counter(version);
  copy->set_allow_tensor_metadata_change(allow_change);
  copy->pinned = pinned;
  copy->input_request = input_request;
  copy->moved_from = moved_from;
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                         bool allow_change) const {
  return shallow_copy_and_detach(static_cast<const c10::VariableVersion&>(version), allow_change);
}

void DTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  if (!impl->key_set().has(kBeforeKey)) {
    throw UsageError("a distributed tensor cannot take the data of a plain tensor", {.op = "set_data"},
                     "pass a distributed tensor, or copy the elements with copy_");
  }
  const auto& other = static_cast<const DTensorImpl&>(*impl);
  shard_ = other.shard_;
  mesh_ = other.mesh_;
  placements_ = other.placements_;
  data_type_ = other.data_type_;
  device_opt_ = other.device_opt_;  // a meta parameter may get memory
  key_set_ = (key_set_ - c10::autocast_dispatch_keyset) | (other.key_set_ & c10::autocast_dispatch_keyset);
  memo.reset();
  set_sizes_and_strides(other.sizes(), other.strides());
}

at::Tensor wrap(LocalShard shard, const MeshPtr& mesh, const Placements& placements, at::ScalarType dtype,
                at::Device device, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return at::detail::make_tensor<DTensorImpl>(std::move(shard), mesh, placements, dtype, device, sizes,
                                              strides);
}

at::Tensor wrap(const at::Tensor& local, const MeshPtr& mesh, const Placements& placements,
                c10::IntArrayRef sizes) {
  const bool ordered = !local.is_contiguous() && is_even(sizes, placements, *mesh);
  return wrap(LocalShard{local, nullptr}, mesh, placements, local.scalar_type(), local.device(), sizes,
              dense_strides(sizes, ordered ? local.strides() : c10::IntArrayRef()));
}

}  // namespace penstock::tensor
