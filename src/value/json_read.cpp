// Typed access to JSON.
#include "value/json_read.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock {

void fail_at(const std::string& where, const std::string& message) {
  throw ParseError(where + ": " + message);
}

namespace {

//! Counts brackets outside of strings; what is no JSON may give any number.
int nesting_of(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        in_string = !in_string;
        break;
      case '\\':
        if (in_string) ++i;
        break;
      case '[':
      case '{':
        if (!in_string) deepest = std::max(deepest, ++depth);
        break;
      case ']':
      case '}':
        if (!in_string) --depth;
        break;
      default:
        break;
    }
  }
  return deepest;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  if (nesting_of(text) > deepest_json)
    fail_at(where, "lists and objects are nested deeper than " + std::to_string(deepest_json));
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    // It quotes the token at which it stopped, which may be of any length.
    fail_at(where, std::string(error.what()).substr(0, 300));
  }
}

Json parse_json(std::span<const std::uint8_t> bytes, const std::string& where) {
  return parse_json(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), where);
}

const Json* optional_field(const Json& object, const char* name, const std::string& where) {
  const auto it = object_at(object, where).find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

const Json& field(const Json& object, const char* name, const std::string& where) {
  const Json* value = optional_field(object, name, where);
  if (!value) fail_at(where, std::string("there is no ") + name);
  return *value;
}

const Json& object_at(const Json& value, const std::string& where) {
  if (!value.is_object()) fail_at(where, "expected an object");
  return value;
}

const Json& array_at(const Json& value, const std::string& where) {
  if (!value.is_array()) fail_at(where, "expected a list");
  return value;
}

std::string string_at(const Json& value, const std::string& where) {
  if (!value.is_string()) fail_at(where, "expected a string");
  return value.get<std::string>();
}

std::int64_t integer_at(const Json& value, const std::string& where) {
  if (!value.is_number_integer()) fail_at(where, "expected an integer");
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
    fail_at(where, "an integer that is too large");
  }
  return value.get<std::int64_t>();
}

double real_at(const Json& value, const std::string& where) {
  if (value.is_number()) return value.get<double>();
  const std::string name = value.is_string() ? value.get<std::string>() : "";
  if (name == "Infinity") return std::numeric_limits<double>::infinity();
  if (name == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (name == "NaN") return std::numeric_limits<double>::quiet_NaN();
  fail_at(where, "expected a number");
}

bool bool_at(const Json& value, const std::string& where) {
  if (!value.is_boolean()) fail_at(where, "expected true or false");
  return value.get<bool>();
}

Choice choice_at(const Json& value, const std::string& where) {
  const Json* found = nullptr;
  std::string name;
  for (const auto& [key, entry] : object_at(value, where).items()) {
    if (entry.is_null()) continue;
    if (found) fail_at(where, "expected one entry, not " + name + " and " + key);
    name = key;
    found = &entry;
  }
  if (!found) fail_at(where, "expected an entry");
  return {name, found};
}

}  // namespace penstock
