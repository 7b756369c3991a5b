// Typed access to JSON that may hold anything: a field of the wrong kind is a ParseError that says where.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock {

using Json = nlohmann::json;

//! Parses a whole record. ParseError for what is no JSON and for lists and objects that are nested deeper
//! than `deepest_json`: copying, printing and comparing a value recurse, and would run out of stack.
Json parse_json(std::span<const std::uint8_t> bytes, const std::string& where);
Json parse_json(std::string_view text, const std::string& where);
inline constexpr int deepest_json = 500;

[[noreturn]] void fail_at(const std::string& where, const std::string& message);

const Json& field(const Json& object, const char* name, const std::string& where);
//! Null if it is missing or null.
const Json* optional_field(const Json& object, const char* name, const std::string& where);

const Json& object_at(const Json& value, const std::string& where);
const Json& array_at(const Json& value, const std::string& where);
std::string string_at(const Json& value, const std::string& where);
std::int64_t integer_at(const Json& value, const std::string& where);
double real_at(const Json& value, const std::string& where);  //!< also "Infinity", "-Infinity" and "NaN"
bool bool_at(const Json& value, const std::string& where);

//! The one entry of a union: `{"as_int": 3}`. Entries that are null do not count.
struct Choice {
  std::string name;
  const Json* value;
};
Choice choice_at(const Json& value, const std::string& where);

}  // namespace penstock
