// Starts copies and records when they end.
#include "checkpoint/commit/host_copies.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace penstock::checkpoint {

void HostCopies::expect(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    const c10::Device device = tensor.device();
    if (device.is_cpu() || std::find(devices.begin(), devices.end(), device) != devices.end()) continue;
    devices.push_back(device);
    done_.emplace_back(device.type());
    done_.back().record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

void HostCopies::start(std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> sources = tensors;
  for (at::Tensor& tensor : tensors) {
    const at::Tensor source = tensor.resolve_conj().resolve_neg();
    const at::TensorOptions options = source.options().device(at::kCPU).pinned_memory(!source.is_cpu());
    tensor = at::empty(source.sizes(), options).copy_(source, /*non_blocking=*/true);
  }
  expect(sources);
}

void HostCopies::wait() {
  for (const c10::Event& event : done_) event.synchronize();
  done_.clear();
}

}  // namespace penstock::checkpoint
