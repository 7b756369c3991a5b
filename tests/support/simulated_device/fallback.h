// The kernel of most operators: runs the CPU operator on the memory of the device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace penstock::test::simulated {

void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace penstock::test::simulated
