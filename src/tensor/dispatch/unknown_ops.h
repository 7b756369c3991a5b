// Operators without a sharding rule. The error names the operator, its placements and a fix, instead of
// libtorch's error about missing memory.
#pragma once

#include "tensor/rules/rules.h"

#include <torch/library.h>

namespace penstock::tensor {

//! The kernel of an operator without a rule: throws UsageError, or replicates all tensors under
//! ReplicateUnknownOps.
void refuse_or_replicate(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

//! Registers kernels for operators that are not in the table and do not reach the fallback: libtorch
//! decomposes them into other operators, some of which access memory.
void register_refusals(torch::Library& library, const RuleTable& table);

//! Registers decompositions, above autograd, of operators for which libtorch's access memory.
void register_decompositions(torch::Library& library);

}  // namespace penstock::tensor
