// The parts that `enable` registers with libtorch.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

namespace penstock::test::simulated {

void register_guard();
void register_kernels();

//! False if libtorch has hooks of its own, or asked for them before this library was loaded.
bool hooks_are_simulated();

void synchronize_device(c10::DeviceIndex device);
void record_data_on_stream(const c10::DataPtr& data, const c10::Stream& stream);

}  // namespace penstock::test::simulated
