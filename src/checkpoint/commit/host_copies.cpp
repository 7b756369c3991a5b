// Starts copies and records when they end. New memory costs more than the copy: the kernel zeroes each page
// at its first use.
#include "checkpoint/commit/host_copies.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <optional>

namespace penstock::checkpoint {
namespace {

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    const c10::Device device = tensor.device();
    if (!device.is_cpu() && std::find(devices.begin(), devices.end(), device) == devices.end())
      devices.push_back(device);
  }
  return devices;
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

c10::Event end_of(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

}  // namespace

c10::Stream HostCopies::copy_stream(c10::Device device) {
  for (const c10::Stream& stream : streams_)
    if (stream.device() == device) return stream;
  return streams_.emplace_back(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
}

void HostCopies::expect(const std::vector<at::Tensor>& tensors) {
  buffers_.clear();
  done_.clear();
  for (const c10::Device device : devices_of(tensors)) done_.push_back(end_of(current_stream(device)));
}

void HostCopies::start(std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sources = tensors;
  for (at::Tensor& source : sources) source = source.resolve_conj().resolve_neg();
  const std::vector<c10::Device> devices = devices_of(sources);
  for (const c10::Device device : devices) end_of(current_stream(device)).block(copy_stream(device));
  buffers_.resize(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& source = sources[i];
    const bool pinned = !source.is_cpu();
    at::Tensor& buffer = buffers_[i];
    if (!buffer.defined() || buffer.sizes() != source.sizes() ||
        buffer.scalar_type() != source.scalar_type() || buffer.is_pinned() != pinned) {
      buffer.reset();  // before the new one is allocated
      buffer = at::empty(source.sizes(), source.options().device(at::kCPU).pinned_memory(pinned));
    }
    std::optional<c10::StreamGuard> guard;
    if (pinned) {
      guard.emplace(copy_stream(source.device()));
      source.record_stream(guard->current_stream());  // it may be freed before its copy ends
    }
    tensors[i] = buffer.copy_(source, /*non_blocking=*/true);
  }
  done_.clear();
  for (const c10::Device device : devices) done_.push_back(end_of(copy_stream(device)));
}

void HostCopies::block_streams() const {
  for (const c10::Event& event : done_) event.block(current_stream(event.device()));
}

void HostCopies::wait() const {
  for (const c10::Event& event : done_) event.synchronize();
}

}  // namespace penstock::checkpoint
