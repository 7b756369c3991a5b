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

}  // namespace

at::Tensor BufferPool::take(const value::TensorMeta& meta, at::Device device) {
  const std::size_t bytes = meta.nbytes();
  Shelf& shelf = shelves_[{bytes, device.type(), device.index(), current_stream_id(device)}];
  shelf.used = true;
  const auto make = [&](const c10::Storage& storage) {
    at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(meta.dtype).device(device));
    return tensor.set_(storage, 0, meta.shape, meta.stride);
  };
  for (const c10::Storage& storage : shelf.storages) {
    if (storage.use_count() == 1) return make(storage);
  }
  const at::Tensor fresh =
      at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(device));
  shelf.storages.push_back(fresh.storage());
  bytes_ += bytes;
  return make(shelf.storages.back());
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
