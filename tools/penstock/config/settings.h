// Options that can be given on the command line or in a TOML file. The command line takes precedence. The
// resolved options can be written in either format.
#pragma once

#include "cli/arguments.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace penstock::tool {

using SettingValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;

struct ConfigValue {
  std::string key;
  SettingValue value;
  std::string where;  //!< `line 3, column 1`
};

//! Reads the keys of a TOML file, in file order. Tables are flattened: their names are ignored. Throws
//! UsageError with line and column.
std::vector<ConfigValue> read_config_file(const std::string& path);
//! Parses the text of such a file. Errors name `path`.
std::vector<ConfigValue> read_config_text(const std::string& text, const std::string& path);

class Settings {
 public:
  explicit Settings(Arguments& arguments) : arguments_(arguments) {}

  //! Adds an option. `names` may start with a short spelling: `-q,--quiet`. For `--grad-clip`, the key in a
  //! file is `grad-clip` or `grad_clip`.
  template <class T>
  void add(const std::string& names, T& target, const std::string& help) {
    if constexpr (std::is_same_v<T, bool>) {
      arguments_.flag(names, target, help);
    } else {
      arguments_.option(names, target, help);
    }
    remember(names.substr(names.find("--")), target);
  }
  //! Adds a flag that may have values: `--recompute`, `--recompute=blocks.*`. In a file, the key is true,
  //! false, a string or a list of strings.
  void flag_or_list(const std::string& name, bool& target, std::vector<std::string>& list,
                    const std::string& help);
  //! Adds the positional argument. `key` is its key in a file.
  void positional(const std::string& shown, const std::string& key, std::string& target,
                  const std::string& help) {
    arguments_.positional(shown, target, help, Arguments::Need::Optional);
    positional_ = &target;
    remember("--" + key, target);
  }
  template <class E>
  void choice(const std::string& name, E& target, const std::vector<std::pair<std::string, E>>& choices,
              const std::string& help) {
    arguments_.choice<E>(name, target, choices, help);
    std::vector<std::string> spelled;
    for (const auto& text : choices) spelled.push_back(text.first);
    entries_.push_back({name,
                        [&target, choices]() -> std::optional<SettingValue> {
                          for (const auto& [text, value] : choices)
                            if (value == target) return text;
                          return std::nullopt;
                        },
                        [&target, choices, spelled, name](const SettingValue& value) {
                          target = choices[index_of(name, spelled, value)].second;
                        }});
  }

  //! Values that completion offers for an option, which takes other values too.
  void suggest(const std::string& name, std::vector<std::string> values) {
    arguments_.suggest(name, std::move(values));
  }

  //! Reads the file and sets every option that was not given on the command line. Call after
  //! `Arguments::parse`.
  void read(const std::string& path);
  //! Whether an option was given, on the command line or in the file.
  bool given(const std::string& name) const;
  //! The keys of all options that were given, on the command line or in the file.
  std::set<std::string> given_keys() const;
  //! Removes settings that do not apply to this run from `toml` and `command_line`.
  void omit(const std::vector<std::string>& names);
  //! Returns all settings, one per line. Unset ones are written as "", [] or false.
  std::string toml() const;
  //! Returns the settings that have a value, as command-line arguments.
  std::vector<std::string> command_line() const;

 private:
  struct Entry {
    std::string name;
    std::function<std::optional<SettingValue>()> get;
    std::function<void(const SettingValue&)> set;
  };

  template <class T>
  void remember(const std::string& name, T& target) {
    entries_.push_back({name, [&target] { return value_of(target); },
                        [&target, name](const SettingValue& value) { take(name, target, value); }});
  }

  static std::optional<SettingValue> value_of(bool target) { return target; }
  static std::optional<SettingValue> value_of(std::int64_t target) { return target; }
  static std::optional<SettingValue> value_of(double target) { return target; }
  static std::optional<SettingValue> value_of(const std::string& target) { return target; }
  static std::optional<SettingValue> value_of(const std::vector<std::string>& target) { return target; }
  template <class T>
  static std::optional<SettingValue> value_of(const std::optional<T>& target) {
    return target ? std::optional<SettingValue>(*target) : std::nullopt;
  }

  static void take(const std::string& name, bool& target, const SettingValue& value);
  static void take(const std::string& name, std::int64_t& target, const SettingValue& value);
  static void take(const std::string& name, double& target, const SettingValue& value);
  static void take(const std::string& name, std::string& target, const SettingValue& value);
  static void take(const std::string& name, std::vector<std::string>& target, const SettingValue& value);
  template <class T>
  static void take(const std::string& name, std::optional<T>& target, const SettingValue& value) {
    T taken{};
    take(name, taken, value);
    target = std::move(taken);
  }
  static std::size_t index_of(const std::string& name, const std::vector<std::string>& choices,
                              const SettingValue& value);

  Arguments& arguments_;
  std::vector<Entry> entries_;
  const std::string* positional_ = nullptr;
  std::set<std::string> from_file_;
};

}  // namespace penstock::tool
