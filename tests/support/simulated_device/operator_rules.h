// Facts about operators on CUDA that their schema does not tell.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace penstock::test::simulated {

//! The CUDA kernel accepts CPU tensors of this argument, if they have no dimensions (`scalar`) or always.
bool accepts_cpu_tensor(const c10::OperatorHandle& op, const c10::Argument& argument, bool scalar);

//! The CUDA kernel blocks the host with these arguments, because the shape of its result or its work depends
//! on values.
bool reads_values_on_host(const c10::OperatorHandle& op, torch::jit::Stack& stack);

//! The operator draws random numbers and has no argument for a generator.
bool hides_generator(const c10::OperatorHandle& op);

}  // namespace penstock::test::simulated
