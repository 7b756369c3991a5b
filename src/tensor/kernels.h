// The entry into libtorch's dispatcher.
#pragma once

namespace penstock {

//! Registers the operators with a rule, once for the process; the first mesh does it.
void register_kernels();

}  // namespace penstock
