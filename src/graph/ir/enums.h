// Integer codes of dtypes, layouts and memory formats in operator arguments, and their names.
#pragma once

#include <ATen/core/function_schema.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace penstock::graph {

enum class EnumKind { None, Dtype, Layout, MemoryFormat };

//! Returns the enum that an integer argument encodes.
EnumKind enum_kind(const c10::Argument& argument);

std::string enum_text(EnumKind kind, std::int64_t value);
std::optional<std::int64_t> try_parse_enum(EnumKind kind, std::string_view text);
//! Whether an integer is a valid value of the enum; always true for EnumKind::None.
bool is_enum_value(EnumKind kind, std::int64_t value);

std::optional<at::ScalarType> try_parse_dtype(std::string_view name);

}  // namespace penstock::graph
