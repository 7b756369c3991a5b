// Reuses or allocates receive buffers.
#include "runtime/transfer/buffer_pool.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace penstock::runtime {
namespace {

c10::StreamId current_stream_id(at::Device device) {
  if (device.is_cpu() || device.is_meta()) return 0;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).id();
}

// Returns a tensor with the memory of `storage`. On the CPU it is made without operators, which take longer
// than a small message.
at::Tensor make_tensor(const c10::Storage& storage, const value::TensorMeta& meta, at::Device device) {
  if (!device.is_cpu()) {
    at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(meta.dtype).device(device));
    return tensor.set_(storage, 0, meta.shape, meta.stride);
  }
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(meta.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.shape, meta.stride);
  return tensor;
}

}  // namespace

at::Tensor BufferPool::take(const value::TensorMeta& meta, at::Device device) {
  const std::size_t bytes = meta.nbytes();
  Shelf& shelf = shelves_[{bytes, device.type(), device.index(), current_stream_id(device)}];
  shelf.used = true;
  for (const c10::Storage& storage : shelf.storages) {
    if (storage.use_count() == 1) return make_tensor(storage, meta, device);
  }
  const at::Tensor fresh =
      at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(device));
  shelf.storages.push_back(fresh.storage());
  bytes_ += bytes;
  return make_tensor(shelf.storages.back(), meta, device);
}

void BufferPool::trim() {
  for (auto it = shelves_.begin(); it != shelves_.end();) {
    if (std::exchange(it->second.used, false)) {
      ++it;
      continue;
    }
    bytes_ -= it->first.bytes * it->second.storages.size();
    it = shelves_.erase(it);
  }
}

}  // namespace penstock::runtime
