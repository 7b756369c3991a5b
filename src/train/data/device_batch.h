// Batches on the device of a rank.
#pragma once

#include <penstock/runtime/loss_function.h>
#include <penstock/train/data.h>

#include <c10/core/Device.h>

namespace penstock::train {

//! Returns the batch with its tensors in pinned host memory, or unchanged if the device is the CPU. Pinning
//! copies them, so the thread that loads batches does it.
Batch pinned(Batch batch, c10::Device device);

//! Returns the batch with its arguments on the device. Copies start from pinned memory, so the host does not
//! wait, and run on a stream of their own, next to the work before them. The current stream waits for them.
//! The target stays on the host, where the weights of the loss are counted.
Batch to_device(Batch batch, c10::Device device);

//! Wraps a loss: copies the target to the device of the output, on the stream of batches.
runtime::LossFunction with_target_on_device(runtime::LossFunction loss);

}  // namespace penstock::train
