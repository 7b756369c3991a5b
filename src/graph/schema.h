// What an operator's schema says about a node: whether its arguments fit, which it writes, what its results
// alias.
#pragma once

#include <penstock/graph/ir.h>

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

namespace penstock {

//! Whether a constant can be passed as an argument of this type.
bool constant_fits(const c10::IValue& constant, const c10::Type& type);

//! A list with the element type that this list type asks for.
c10::IValue typed_list(const std::vector<c10::IValue>& items, const c10::Type& list);

//! The constant as an argument of this type takes it: numbers in a tensor's place are wrapped, integers
//! become doubles, lists get their element type. Nothing if it does not fit.
std::optional<c10::IValue> fitted(const c10::IValue& constant, const c10::Type& type);

//! UsageError unless every argument of the node can be passed to its operator and every result is one.
void check_arguments(const Graph& graph, const Node& node);

//! A 0-dim tensor that takes part in type promotion as a Python number does.
c10::IValue wrapped_number(const c10::IValue& number);

//! The type without `Optional` around it.
const c10::Type& without_optional(const c10::Type& type);

//! Whether arguments of this type are tensors, optional ones too.
bool is_tensor_type(const c10::Type& type);

}  // namespace penstock
