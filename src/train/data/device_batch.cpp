// Moves batches to the device of a rank without host syncs.
#include "train/data/device_batch.h"

#include <penstock/value/tree.h>

#include <ATen/core/Tensor.h>

#include <optional>

namespace penstock::train {
namespace {

c10::IValue pinned(const c10::IValue& tree) {
  return value::map_tensors(tree, [](const at::Tensor& tensor) {
    return tensor.is_cpu() && !tensor.is_pinned() ? tensor.pin_memory() : tensor;
  });
}

// A pinned tensor is copied in the background. Its memory is not reused before the copy ends.
c10::IValue copied(const c10::IValue& tree, c10::Device device) {
  return value::map_tensors(
      tree, [&](const at::Tensor& tensor) { return tensor.to(device, /*non_blocking=*/tensor.is_pinned()); });
}

std::optional<c10::Device> device_of(const c10::IValue& tree) {
  for (const at::Tensor& tensor : value::tensors_of(tree))
    if (tensor.defined()) return tensor.device();
  return std::nullopt;
}

}  // namespace

Batch to_device(Batch batch, c10::Device device) {
  if (device.is_cpu()) return batch;
  for (c10::IValue& arg : batch.args) arg = copied(pinned(arg), device);
  for (auto& [name, value] : batch.kwargs) value = copied(pinned(value), device);
  batch.target = pinned(batch.target);
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
