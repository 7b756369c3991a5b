// Registration with libtorch's dispatcher.
#pragma once

namespace penstock::tensor {

class OpCall;

//! Registers kernels for all operators with a rule, once per process. Constructing the first mesh calls it.
void register_kernels();

//! Plans the call, redistributes its tensors, and pushes distributed results on the stack. No autograd.
void run_on_shards(OpCall& call);

}  // namespace penstock::tensor
