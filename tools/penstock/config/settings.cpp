// Reads settings from the command line and TOML, and writes them back as text.
#include "config/settings.h"

#include "base/json.h"
#include "base/number_text.h"
#include "base/text.h"
#include "cli/paths.h"

#include <penstock/base/error.h>

#include <algorithm>

namespace penstock::tool {
namespace {

std::string key_of(const std::string& name) {
  return name.substr(2);
}

// `example` is a value as TOML text.
[[noreturn]] void refuse(const std::string& name, const char* what, const char* example) {
  throw UsageError(key_of(name) + " must be " + what, {}, "for example " + key_of(name) + " = " + example);
}

std::string toml_text(const SettingValue& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) {
    const std::string text = decimal_text(*number);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  if (const auto* text = std::get_if<std::string>(&value)) return json_quote(*text);
  std::vector<std::string> items;
  for (const std::string& item : std::get<std::vector<std::string>>(value)) items.push_back(json_quote(item));
  return "[" + join(items, ", ") + "]";
}

std::string argument_text(const SettingValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) return join(*list, ",");
  if (const auto* number = std::get_if<double>(&value)) return decimal_text(*number);
  return toml_text(value);
}

// Whether the value can be omitted from a command line.
bool is_empty(const SettingValue& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return !*truth;
  if (const auto* text = std::get_if<std::string>(&value)) return text->empty();
  const auto* list = std::get_if<std::vector<std::string>>(&value);
  return list != nullptr && list->empty();
}

}  // namespace

void Settings::take(const std::string& name, bool& target, const SettingValue& value) {
  if (!std::holds_alternative<bool>(value)) refuse(name, "true or false", "true");
  target = std::get<bool>(value);
}
void Settings::take(const std::string& name, std::int64_t& target, const SettingValue& value) {
  if (!std::holds_alternative<std::int64_t>(value)) refuse(name, "a whole number", "4");
  target = std::get<std::int64_t>(value);
}
void Settings::take(const std::string& name, double& target, const SettingValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    target = static_cast<double>(*integer);
  } else if (const auto* number = std::get_if<double>(&value)) {
    target = *number;
  } else {
    refuse(name, "a number", "3e-4");
  }
}
void Settings::take(const std::string& name, std::string& target, const SettingValue& value) {
  if (!std::holds_alternative<std::string>(value)) refuse(name, "a string", "\"text\"");
  target = std::get<std::string>(value);
}
void Settings::take(const std::string& name, std::vector<std::string>& target, const SettingValue& value) {
  if (const auto* one = std::get_if<std::string>(&value)) {
    target = {*one};
  } else if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    target = *list;
  } else {
    refuse(name, "a string or a list of strings", "[\"first\", \"second\"]");
  }
}

std::size_t Settings::index_of(const std::string& name, const std::vector<std::string>& choices,
                               const SettingValue& value) {
  const auto* chosen = std::get_if<std::string>(&value);
  const auto found = chosen == nullptr ? choices.end() : std::find(choices.begin(), choices.end(), *chosen);
  if (found == choices.end())
    throw UsageError(key_of(name) + " must be one of " + join(choices, ", "), {},
                     did_you_mean(chosen == nullptr ? "" : *chosen, choices, "use one of these values"));
  return static_cast<std::size_t>(found - choices.begin());
}

void Settings::flag_or_list(const std::string& name, bool& target, std::vector<std::string>& list,
                            const std::string& help) {
  arguments_.flag_or_list(name, target, list, help);
  entries_.push_back({name,
                      [&target, &list]() -> std::optional<SettingValue> {
                        return list.empty() ? SettingValue(target) : SettingValue(list);
                      },
                      [&target, &list, name](const SettingValue& value) {
                        if (std::holds_alternative<bool>(value)) return take(name, target, value);
                        take(name, list, value);
                      }});
}

void Settings::read(const std::string& path) {
  for (const ConfigValue& item : read_config_file(path)) {
    std::string name = "--" + item.key;
    std::replace(name.begin(), name.end(), '_', '-');
    const auto entry =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.name == name; });
    const ErrorContext where{};
    const std::string location = quote(path, 200) + ", " + item.where + ": ";
    if (entry == entries_.end()) {
      std::vector<std::string> known;
      for (const Entry& e : entries_) known.push_back(key_of(e.name));
      throw UsageError(location + "unknown setting " + quote(item.key), where,
                       did_you_mean(key_of(name), known,
                                    "valid keys are the options of penstock train --help, without --"));
    }
    const bool is_positional = positional_ != nullptr && entry->name == "--model";
    if (is_positional ? !positional_->empty() : arguments_.given(name)) continue;
    from_file_.insert(name);
    try {
      entry->set(item.value);
    } catch (const UsageError& error) {
      throw UsageError(location + error.message(), where, error.hint());
    }
  }
}

bool Settings::given(const std::string& name) const {
  return arguments_.given(name) || from_file_.contains(name);
}

std::set<std::string> Settings::given_keys() const {
  std::set<std::string> keys;
  for (const Entry& entry : entries_) {
    const bool is_positional = positional_ != nullptr && entry.name == "--model";
    if (is_positional ? !positional_->empty() : given(entry.name)) keys.insert(key_of(entry.name));
  }
  return keys;
}

void Settings::omit(const std::vector<std::string>& names) {
  std::erase_if(entries_, [&](const Entry& entry) {
    return std::find(names.begin(), names.end(), entry.name) != names.end();
  });
}

std::string Settings::toml() const {
  std::string text;
  for (const Entry& entry : entries_)
    if (const auto value = entry.get()) text += key_of(entry.name) + " = " + toml_text(*value) + "\n";
  return text;
}

std::vector<std::string> Settings::command_line() const {
  std::vector<std::string> args;
  for (const Entry& entry : entries_) {
    const auto value = entry.get();
    if (!value || is_empty(*value)) continue;
    if (positional_ != nullptr && entry.name == "--model") {
      args.insert(args.begin(), *positional_);
    } else if (std::holds_alternative<bool>(*value)) {
      args.push_back(entry.name);
    } else {
      args.push_back(entry.name + "=" + argument_text(*value));
    }
  }
  return args;
}

}  // namespace penstock::tool
