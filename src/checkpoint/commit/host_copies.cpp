// Starts copies and records when they end. New memory costs more than the copy: the kernel zeroes each page
// at its first use.
#include "checkpoint/commit/host_copies.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace penstock::checkpoint {

void HostCopies::expect(const std::vector<at::Tensor>& tensors) {
  buffers_.clear();
  record(tensors);
}

void HostCopies::record(const std::vector<at::Tensor>& tensors) {
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
  buffers_.resize(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor source = sources[i].resolve_conj().resolve_neg();
    const bool pinned = !source.is_cpu();
    at::Tensor& buffer = buffers_[i];
    if (!buffer.defined() || buffer.sizes() != source.sizes() ||
        buffer.scalar_type() != source.scalar_type() || buffer.is_pinned() != pinned) {
      buffer.reset();  // before the new one is allocated
      buffer = at::empty(source.sizes(), source.options().device(at::kCPU).pinned_memory(pinned));
    }
    tensors[i] = buffer.copy_(source, /*non_blocking=*/true);
  }
  record(sources);
}

void HostCopies::wait() {
  for (const c10::Event& event : done_) event.synchronize();
  done_.clear();
}

}  // namespace penstock::checkpoint
