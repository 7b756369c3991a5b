// Replicas that should be the same and may not be.
#pragma once

#include "tensor/rules.h"

namespace penstock {

//! A plain tensor is about to be written into a distributed one: UsageError on every rank unless all ranks
//! have the same values. One small message per axis; nothing while a backward runs.
void check_loaded(const OpCall& call, const at::Tensor& plain);

}  // namespace penstock
