// Checks nodes against their operator schemas and converts constants to argument types.
#pragma once

#include <penstock/graph/ir.h>

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

namespace penstock::graph {

//! Whether a constant can be passed as an argument of this type.
bool constant_fits(const c10::IValue& constant, const c10::Type& type);

//! Returns a list with the element type of `list`.
c10::IValue typed_list(const std::vector<c10::IValue>& items, const c10::Type& list);

//! Converts a constant to an argument type: wraps numbers for tensor arguments, converts integers to doubles,
//! sets the element type of lists. Returns nullopt if it does not fit.
std::optional<c10::IValue> fitted(const c10::IValue& constant, const c10::Type& type);

//! Throws UsageError unless the arguments and results of the node match the schema of its operator.
void check_arguments(const Graph& graph, const Node& node);

//! Returns a 0-dim tensor that behaves like a Python number in type promotion.
c10::IValue wrapped_number(const c10::IValue& number);

//! Strips `Optional` from the type.
const c10::Type& without_optional(const c10::Type& type);

//! Whether the type is a tensor or an optional tensor.
bool is_tensor_type(const c10::Type& type);

}  // namespace penstock::graph
