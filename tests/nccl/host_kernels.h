// Computations on the host in place of libtorch's CUDA kernels, for the fake CUDA runtime.
#pragma once

namespace penstock::test {

//! Replaces every CUDA kernel that has a CPU kernel, for the rest of the process. Streams, events, the
//! allocator, autograd's device threads and ProcessGroupNCCL remain those of libtorch.
void use_host_kernels();

}  // namespace penstock::test
