// The parts of an archive's JSON: dtypes and sizes, the structure of inputs and outputs, constants.
#pragma once

#include "base/io/json_reader.h"

#include <penstock/graph/ir.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

//! The archive's own numbers for dtypes, layouts and memory formats.
at::ScalarType pt2_dtype(const JsonValue& value, const std::string& where);
std::int64_t pt2_layout(const JsonValue& value, const std::string& where);
std::int64_t pt2_memory_format(const JsonValue& value, const std::string& where);
c10::Device pt2_device(const JsonValue& value, const std::string& where);

//! A size or a symbolic expression with its hint.
Dim pt2_dim(const JsonValue& value, const std::string& where);
ValueMeta pt2_meta(const JsonValue& value, const std::string& where);

//! `Mul(Integer(4), Symbol('s77', positive=True))` becomes `Mul(4, s77)`.
std::string short_expression(const std::string& expression);

//! Fields of named tuples by class.
using NamedTuples = std::map<std::string, std::vector<std::string>>;

//! A tree specification of Python. Dataclasses and named tuples become dicts by field name.
Structure pt2_structure(const std::string& text, const NamedTuples& named, const std::string& where);

//! Gives the node its module, the innermost of the archive's `nn_module_stack`, and which call of it that
//! was.
void pt2_module(const JsonValue& json, const std::string& where, Node& node);

}  // namespace penstock
