// Copies of tensors in host memory, for the background thread that writes them. From a device, they go to
// pinned memory on a stream of their own, while the host and the streams of the caller continue.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

namespace penstock::checkpoint {

class HostCopies {
 public:
  //! The work so far on the devices of these tensors must be done before `wait` returns. Frees the memory of
  //! earlier copies.
  void expect(const std::vector<at::Tensor>& tensors);
  //! Replaces the tensors by contiguous copies on the host, which are complete after `wait` and valid until
  //! the next call: it uses their memory again. The copies see the work so far on the current streams. The
  //! tensors on devices must not change before `block_streams`, but may be freed.
  void start(std::vector<at::Tensor>& tensors);
  //! Makes the current streams of the devices wait for the copies of the last `start`. The host continues.
  void block_streams() const;
  //! Blocks the calling thread, not the thread that started the copies. That one may call `block_streams` at
  //! the same time.
  void wait() const;

 private:
  c10::Stream copy_stream(c10::Device device);

  std::vector<at::Tensor> buffers_;   //!< the copies of the last `start`
  std::vector<c10::Stream> streams_;  //!< one per device, kept because libtorch caches memory per stream
  std::vector<c10::Event> done_;      //!< of the last call, one per device
};

}  // namespace penstock::checkpoint
