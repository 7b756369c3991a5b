// Checks that replicated values are equal on all ranks.
#pragma once

#include "tensor/rules/rules.h"

namespace penstock::tensor {

//! Throws UsageError on every rank if a plain tensor that is about to be copied into a distributed one
//! differs between ranks. One small message per axis; does nothing during a backward pass.
void check_loaded(const OpCall& call, const at::Tensor& plain);

}  // namespace penstock::tensor
