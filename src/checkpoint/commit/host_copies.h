// Copies of tensors in host memory, for the background thread that writes them. From a device, they go to
// pinned memory while the host continues. The copies run on the current stream of the device and not on a
// stream of their own: the caller may change the tensors as soon as `save` returns, so its stream would have
// to wait for them anyway.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <vector>

namespace penstock::checkpoint {

class HostCopies {
 public:
  //! The work so far on the devices of these tensors must be done before `wait` returns. Frees the memory of
  //! earlier copies.
  void expect(const std::vector<at::Tensor>& tensors);
  //! Replaces the tensors by contiguous copies on the host, which are complete after `wait` and valid until
  //! the next call: it uses their memory again.
  void start(std::vector<at::Tensor>& tensors);
  //! Blocks the calling thread, not the thread that started the copies.
  void wait();

 private:
  void record(const std::vector<at::Tensor>& tensors);

  std::vector<at::Tensor> buffers_;  //!< the copies of the last `start`
  std::vector<c10::Event> done_;
};

}  // namespace penstock::checkpoint
