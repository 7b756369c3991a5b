// A pool of receive buffers. A buffer is free when nothing else holds its storage, so buffers are never
// returned explicitly: the pool grows to the largest number in use at one time. On a device, work that still
// uses a free buffer precedes later work of the same stream, so a buffer is reused only on its stream.
#pragma once

#include <penstock/value/tensor_meta.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

namespace penstock::runtime {

class BufferPool {
 public:
  //! Returns a tensor with this metadata (except `requires_grad`) and uninitialized elements, for use on the
  //! current stream of the device.
  at::Tensor take(const value::TensorMeta& meta, at::Device device);
  //! Frees the buffers of sizes that were not requested since the last call.
  void trim();
  //! The total memory of the pool, in use or free.
  std::size_t bytes() const { return bytes_; }

 private:
  struct Key {
    std::size_t bytes;
    at::DeviceType type;
    int index;
    c10::StreamId stream;  // 0 on the CPU
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Shelf {
    std::vector<c10::Storage> storages;
    bool used = true;
  };
  std::map<Key, Shelf> shelves_;
  std::size_t bytes_ = 0;
};

}  // namespace penstock::runtime
