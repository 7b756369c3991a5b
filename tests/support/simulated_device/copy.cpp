// Copies between devices and between a device and the host.
#include "copy.h"

#include "host_alias.h"
#include "simulation.h"

#include <c10/core/DeviceGuard.h>

#include <cstring>

namespace penstock::test::simulated {
namespace {

const std::string kCopy = "aten::copy_";

// Two devices copy on the stream of the source, and their current streams wait for each other.
void copy_on_devices(const at::Tensor& to, const at::Tensor& from) {
  Simulation& state = simulation();
  const StreamIndex source = index_of(current_stream(from.device().index()));
  const StreamIndex target = index_of(current_stream(to.device().index()));
  if (from.device() != to.device()) {
    const std::lock_guard lock(state.mutex);
    state.clocks.stream_wait(source, state.clocks.of(target));
  }
  const Moment moment = launch(from.device().index());
  record_access(from, false, kCopy, moment);
  record_access(to, true, kCopy, moment);
  host_alias(to).copy_(host_alias(from));
  if (from.device() != to.device()) {
    const std::lock_guard lock(state.mutex);
    state.clocks.stream_wait(target, state.clocks.of(source));
  }
}

// Earlier copies on pinned memory end before a copy that their streams precede.
void finish_earlier_copies(const at::Tensor& host, c10::DeviceIndex device) {
  Simulation& state = simulation();
  const StreamIndex stream = index_of(current_stream(device));
  std::vector<PendingCopy> earlier;
  {
    const std::lock_guard lock(state.mutex);
    earlier = state.pinned.take_done(state.clocks.of(stream), host);
  }
  for (const PendingCopy& copy : earlier) finish(copy);
}

// A copy that the host does not wait for. Bytes for the host arrive when it waits.
void start_copy(const at::Tensor& to, const at::Tensor& from, Moment moment) {
  const bool to_host = to.is_cpu();
  PendingCopy copy{.host = to_host ? to : from, .content = {}, .to_host = to_host, .moment = moment};
  if (to_host) {
    copy.content = host_alias(from).to(to.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    if (to.is_non_overlapping_and_dense()) std::memset(to.mutable_data_ptr(), 0xFF, to.nbytes());
  } else {
    copy.content = from.clone();
    host_alias(to).copy_(from);
  }
  Simulation& state = simulation();
  const std::lock_guard lock(state.mutex);
  state.pinned.start(std::move(copy));
}

void copy_with_host(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const bool to_host = to.is_cpu();
  const at::Tensor& host = to_host ? to : from;
  const c10::DeviceIndex device = (to_host ? from : to).device().index();
  finish_earlier_copies(host, device);
  const Moment moment = launch(device);
  record_access(from, false, kCopy, moment);
  record_access(to, true, kCopy, moment);
  bool pinned = false;
  {
    Simulation& state = simulation();
    const std::lock_guard lock(state.mutex);
    pinned = state.pinned.find(host.storage().data()) != nullptr;
  }
  if (non_blocking && pinned) {
    start_copy(to, from, moment);
    return;
  }
  if (to_host) {
    to.copy_(host_alias(from));
  } else {
    host_alias(to).copy_(from);
  }
  // Pageable memory for a device is staged at once; pageable memory for the host arrives before the call
  // ends.
  if (to_host || !non_blocking) synchronize_stream(current_stream(device), kCopy);
}

}  // namespace

at::Tensor& copy_kernel(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  const KernelScope scope;
  const at::Tensor from = source.sizes() == self.sizes() ? source : source.expand(self.sizes());
  if (self.numel() == 0) return self;
  if (self.is_cuda() && from.is_cuda()) {
    copy_on_devices(self, from);
  } else {
    copy_with_host(self, from, non_blocking);
  }
  return self;
}

at::Scalar item_kernel(const at::Tensor& self) {
  const KernelScope scope;
  record_access(self, false, "aten::_local_scalar_dense", launch(self.device().index()));
  synchronize_stream(current_stream(self.device().index()), "aten::_local_scalar_dense");
  return host_alias(self).item();
}

}  // namespace penstock::test::simulated
