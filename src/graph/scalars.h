// Arithmetic on sizes, with Python's rules.
#pragma once

#include <penstock/graph/ir.h>

#include <span>

namespace penstock {

//! UsageError for operands that the operator is not defined for (a division by zero, too few of them).
c10::IValue evaluate(ScalarOp op, std::span<const c10::IValue> operands);

//! How many operands it takes.
std::size_t scalar_arity(ScalarOp op);

}  // namespace penstock
