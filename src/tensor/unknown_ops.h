// Operators without a sharding rule: an error that names the operator, its placements and what to do, never
// one of libtorch about memory that a distributed tensor does not have.
#pragma once

#include "tensor/rules.h"

#include <torch/library.h>

namespace penstock {

//! The kernel of an operator without a rule: a UsageError, or all its tensors replicated under a
//! ReplicateUnknownOps.
void refuse_or_replicate(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

//! Registers kernels for operators that are not in the table and that libtorch would not send to the
//! fallback: it makes them of other operators, some of which read memory.
void refuse_the_rest(torch::Library& library, const RuleTable& table);

}  // namespace penstock
