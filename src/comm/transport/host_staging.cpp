// Staging of device tensors through pinned host memory.
#include "comm/transport/host_staging.h"

#include <ATen/ops/empty.h>

namespace penstock::comm {
namespace {

at::Tensor pinned_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(c10::kCPU).pinned_memory(true));
}

}  // namespace

at::Tensor HostStaging::input(const at::Tensor& tensor) {
  if (!enabled_) return tensor;
  at::Tensor host = pinned_like(tensor);
  host.copy_(tensor.detach());
  return host;
}

at::Tensor HostStaging::output(const at::Tensor& tensor) {
  if (!enabled_) return tensor;
  return outputs_.emplace_back(tensor.detach(), pinned_like(tensor)).second;
}

at::Tensor HostStaging::in_out(const at::Tensor& tensor) {
  if (!enabled_) return tensor;
  return outputs_.emplace_back(tensor.detach(), input(tensor)).second;
}

// libtorch's pinned memory is reused only after the copies from it have ended, so the host need not wait.
void HostStaging::finish() const {
  for (const auto& [tensor, host] : outputs_) tensor.copy_(host, /*non_blocking=*/true);
}

}  // namespace penstock::comm
