// The device of a rank.
#pragma once

#include <c10/core/Device.h>

namespace penstock::comm {

//! Returns `requested` with an index: the device `local_rank` if none is given. Throws UsageError if libtorch
//! or this machine does not have it.
c10::Device resolve_device(c10::Device requested, int local_rank);

//! Makes the device the current one of the calling thread. Does nothing for the CPU.
void set_current_device(c10::Device device);

}  // namespace penstock::comm
