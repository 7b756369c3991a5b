// Arithmetic on sizes, with Python's rules.
#pragma once

#include <penstock/graph/ir.h>

#include <span>

namespace penstock::graph {

//! Throws UsageError for invalid operands, such as a zero divisor or too few operands.
c10::IValue evaluate(ScalarOp op, std::span<const c10::IValue> operands);

//! The number of operands.
std::size_t scalar_arity(ScalarOp op);

}  // namespace penstock::graph
