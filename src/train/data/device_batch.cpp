// Moves batches to the device of a rank without host syncs.
#include "train/data/device_batch.h"

#include <penstock/value/tree.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <unordered_map>
#include <utility>

namespace penstock::train {
namespace {

c10::IValue pinned_tree(const c10::IValue& tree) {
  return value::map_tensors(tree, [](const at::Tensor& tensor) {
    return tensor.is_cpu() && !tensor.is_pinned() ? tensor.pin_memory() : tensor;
  });
}

std::optional<c10::Device> device_of(const c10::IValue& tree) {
  for (const at::Tensor& tensor : value::tensors_of(tree))
    if (tensor.defined()) return tensor.device();
  return std::nullopt;
}

// The stream of this thread for copies to the device. Always the same: libtorch caches memory per stream.
c10::Stream copy_stream(c10::Device device) {
  thread_local std::unordered_map<c10::Device, c10::Stream> streams;
  const auto known = streams.find(device);
  if (known != streams.end()) return known->second;
  const c10::impl::VirtualGuardImpl devices(device.type());
  return streams.emplace(device, devices.getStreamFromGlobalPool(device)).first->second;
}

// Copies pinned tensors to the device in the background. The current stream waits for them, and their memory
// is not reused before both streams have used it.
c10::IValue copied(const c10::IValue& tree, c10::Device device) {
  const c10::Stream copies = copy_stream(device);
  const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  c10::IValue result = value::map_tensors(tree, [&](const at::Tensor& tensor) {
    if (!tensor.is_cpu()) return tensor.to(device);  // from the current stream
    const c10::StreamGuard guard(copies);
    at::Tensor copy = tensor.to(device, /*non_blocking=*/tensor.is_pinned());
    copy.record_stream(current);
    return copy;
  });
  c10::Event end(device.type());
  end.record(copies);
  end.block(current);
  return result;
}

}  // namespace

Batch pinned(Batch batch, c10::Device device) {
  if (device.is_cpu()) return batch;
  for (c10::IValue& arg : batch.args) arg = pinned_tree(arg);
  for (auto& [name, value] : batch.kwargs) value = pinned_tree(value);
  batch.target = pinned_tree(batch.target);
  return batch;
}

Batch to_device(Batch batch, c10::Device device) {
  if (device.is_cpu()) return batch;
  batch = pinned(std::move(batch), device);
  for (c10::IValue& arg : batch.args) arg = copied(arg, device);
  for (auto& [name, value] : batch.kwargs) value = copied(value, device);
  return batch;
}

runtime::LossFunction with_target_on_device(runtime::LossFunction loss) {
  return [loss = std::move(loss)](const c10::IValue& output, const c10::IValue& target,
                                  const value::Kwargs& more) {
    const std::optional<c10::Device> device = device_of(output);
    if (!device || device->is_cpu()) return loss(output, target, more);
    return loss(output, copied(target, *device), more);
  };
}

}  // namespace penstock::train
