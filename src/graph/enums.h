// The integers that stand for dtypes, layouts and memory formats in operator arguments, and their names.
#pragma once

#include <ATen/core/function_schema.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace penstock {

enum class EnumKind { None, Dtype, Layout, MemoryFormat };

//! What an integer argument stands for.
EnumKind enum_kind(const c10::Argument& argument);

std::string enum_text(EnumKind kind, std::int64_t value);
std::optional<std::int64_t> parse_enum(EnumKind kind, std::string_view text);
//! Whether an integer is one of the enum's values; true for EnumKind::None.
bool is_enum_value(EnumKind kind, std::int64_t value);

std::optional<at::ScalarType> parse_dtype(std::string_view name);

}  // namespace penstock
