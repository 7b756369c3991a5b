// Reads parts of an archive's JSON: dtypes, sizes, input and output structures, module paths. `where` is the
// location for error messages.
#pragma once

#include "base/io/json_reader.h"

#include <penstock/graph/ir.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::graph {

//! Decode the archive's codes for dtypes, layouts, memory formats and devices.
at::ScalarType pt2_dtype(const JsonValue& value, const std::string& where);
std::int64_t pt2_layout(const JsonValue& value, const std::string& where);
std::int64_t pt2_memory_format(const JsonValue& value, const std::string& where);
c10::Device pt2_device(const JsonValue& value, const std::string& where);

//! Reads a size, or a symbolic expression with its hint.
Dim pt2_dim(const JsonValue& value, const std::string& where);
ValueMeta pt2_meta(const JsonValue& value, const std::string& where);

//! `Mul(Integer(4), Symbol('s77', positive=True))` becomes `Mul(4, s77)`.
std::string short_expression(const std::string& expression);

//! The field names of named tuples, by class.
using NamedTuples = std::map<std::string, std::vector<std::string>>;

//! Parses a Python tree spec. Dataclasses and named tuples become dicts keyed by field name.
value::Structure pt2_structure(const std::string& text, const NamedTuples& named, const std::string& where);

//! Sets the module of the node, the innermost entry of `nn_module_stack`, and its call numbers.
void pt2_module(const JsonValue& json, const std::string& where, Node& node);

}  // namespace penstock::graph
