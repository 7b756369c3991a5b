// The device of a rank.
#pragma once

#include <c10/core/Device.h>

namespace penstock::comm {

//! The index of a rank's device: its local rank, or 0 if the launcher gave the rank a device of its own, as
//! `srun --gpus-per-task=1` does: then it sees one device, and `visible` (CUDA_VISIBLE_DEVICES, or null)
//! names one.
int device_of_rank(int local_rank, int count, const char* visible);

//! Returns `requested` with an index: that of `device_of_rank` if none is given. Throws UsageError if
//! libtorch or this machine does not have it.
c10::Device resolve_device(c10::Device requested, int local_rank);

//! Makes the device the current one of the calling thread. Does nothing for the CPU.
void set_current_device(c10::Device device);

}  // namespace penstock::comm
