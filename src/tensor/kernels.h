// The entry into libtorch's dispatcher.
#pragma once

namespace penstock {

class OpCall;

//! Registers the operators with a rule, once for the process; the first mesh does it.
void register_kernels();

//! Plans the call, moves its tensors, and leaves distributed results on the stack. No autograd.
void run_on_shards(OpCall& call);

}  // namespace penstock
