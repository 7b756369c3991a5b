// Reads a TOML file of settings into a flat list.
#include "base/text.h"
#include "cli/toml_text.h"
#include "config/settings.h"

#include <penstock/base/error.h>

namespace penstock::tool {
namespace {

SettingValue value_of(const toml::node& node) {
  if (const auto truth = node.value_exact<bool>()) return *truth;
  if (const auto integer = node.value_exact<std::int64_t>()) return *integer;
  if (const auto number = node.value_exact<double>()) return *number;
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const toml::array* items = node.as_array()) {
    std::vector<std::string> texts;
    for (const toml::node& item : *items) {
      const auto text = item.value_exact<std::string>();
      if (!text) throw ParseError(position_text(item.source().begin) + ": a list must contain only strings");
      texts.push_back(*text);
    }
    return texts;
  }
  throw ParseError(position_text(node.source().begin) +
                   ": a setting must be a string, a number, a boolean or a list of strings");
}

void add_all(const toml::table& table, std::vector<ConfigValue>& values) {
  for (const auto& [key, node] : table) {
    if (const toml::table* inner = node.as_table()) {
      add_all(*inner, values);
    } else {
      values.push_back({std::string(key.str()), value_of(node), position_text(node.source().begin)});
    }
  }
}

}  // namespace

std::vector<ConfigValue> read_config_file(const std::string& path) {
  return read_config_text(read_input(path), path);
}

std::vector<ConfigValue> read_config_text(const std::string& text, const std::string& path) {
  std::vector<ConfigValue> values;
  try {
    add_all(parse_toml(text), values);
  } catch (const toml::parse_error& error) {
    throw UsageError(quote(path, 200) + ", " + position_text(error.source().begin) + ": " +
                         std::string(error.description()),
                     {}, "write KEY = VALUE on each line, with strings in quotes");
  } catch (const ParseError& error) {
    throw UsageError(quote(path, 200) + ", " + error.message(), {},
                     "write KEY = VALUE on each line, with strings in quotes");
  }
  return values;
}

}  // namespace penstock::tool
