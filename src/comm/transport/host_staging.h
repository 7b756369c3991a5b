// Copies of device tensors in host memory, for transports that read and write only host memory (Gloo).
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace penstock::comm {

class HostStaging {
 public:
  //! If not `enabled`, every function returns its tensor, and `finish` does nothing.
  explicit HostStaging(bool enabled) : enabled_(enabled) {}

  //! Returns the tensor in host memory. Waits until the current stream has computed it.
  at::Tensor input(const at::Tensor& tensor);
  //! Returns host memory that `finish` copies to the tensor.
  at::Tensor output(const at::Tensor& tensor);
  //! Both.
  at::Tensor in_out(const at::Tensor& tensor);

  bool has_outputs() const { return !outputs_.empty(); }
  //! Copies the outputs to their tensors, on the current stream of their device.
  void finish() const;

 private:
  bool enabled_;
  std::vector<std::pair<at::Tensor, at::Tensor>> outputs_;  //!< (tensor, host memory)
};

}  // namespace penstock::comm
