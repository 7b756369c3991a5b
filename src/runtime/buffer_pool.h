// Memory for received tensors. A buffer is free again when nobody else holds its storage, so nothing needs to
// give it back: the pool's peak is the most that were in use at a time.
#pragma once

#include <penstock/value/tensor_meta.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

namespace penstock {

class BufferPool {
 public:
  //! A tensor with this metadata (but `requires_grad`); its elements are undefined.
  at::Tensor take(const TensorMeta& meta, at::Device device);
  //! Forgets the sizes that nobody asked for since the last call.
  void trim();
  //! All memory of the pool, in use or not.
  std::size_t bytes() const { return bytes_; }

 private:
  struct Key {
    std::size_t bytes;
    at::DeviceType type;
    int index;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Shelf {
    std::vector<c10::Storage> storages;
    bool used = true;
  };
  std::map<Key, Shelf> shelves_;
  std::size_t bytes_ = 0;
};

}  // namespace penstock
