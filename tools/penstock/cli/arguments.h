// Argument parser of one command: the command declares its options, then calls `parse`. Only arguments.cpp
// includes CLI11, because it takes seconds to compile.
#pragma once

#include "cli/command.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tool {

//! The first argument of a command that completes the other arguments instead of running.
inline constexpr const char* kCompleteWord = "__complete";

//! Thrown by `parse` after it has handled the command line itself (`--help`, completion).
struct HelpPrinted {};

class Arguments {
 public:
  //! `args` are the arguments after the command name.
  Arguments(const Command& command, std::vector<std::string> args);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  enum class Need { Optional, Required };

  //! A positional argument: `NAME`, `FILE.csv`.
  void positional(const std::string& name, std::string& target, const std::string& help,
                  Need need = Need::Required);
  //! A positional argument that takes any number of values.
  void positional(const std::string& name, std::vector<std::string>& target, const std::string& help,
                  Need need = Need::Required);
  //! Takes the first argument that is not an option and everything after it, options included. `--` may
  //! precede it.
  void rest(const std::string& name, std::vector<std::string>& target, const std::string& help);

  //! `--name VALUE`. `names` may list several spellings: `-o,--output`. The help shows the target's value as
  //! default.
  void option(const std::string& names, std::string& target, const std::string& help,
              Need need = Need::Optional);
  void option(const std::string& names, std::int64_t& target, const std::string& help,
              Need need = Need::Optional);
  void option(const std::string& names, double& target, const std::string& help, Need need = Need::Optional);
  void option(const std::string& names, std::optional<std::string>& target, const std::string& help);
  void option(const std::string& names, std::optional<std::int64_t>& target, const std::string& help);
  void option(const std::string& names, std::optional<double>& target, const std::string& help);
  //! A list: the option may be repeated, and values may be separated by commas.
  void option(const std::string& names, std::vector<std::string>& target, const std::string& help);

  void flag(const std::string& names, bool& target, const std::string& help);
  //! `--name`, or `--name=VALUE` with values that are separated by commas. A value needs the `=`.
  void flag_or_list(const std::string& name, bool& target, std::vector<std::string>& list,
                    const std::string& help);

  //! An option with a fixed set of values: `choice("--as", format, {{"csv", Format::Csv}, …}, "…")`.
  template <class E>
  void choice(const std::string& names, E& target, const std::vector<std::pair<std::string, E>>& choices,
              const std::string& help, Need need = Need::Optional) {
    std::vector<std::string> spelled;
    std::string chosen;
    for (const auto& [text, value] : choices) {
      spelled.push_back(text);
      if (value == target) chosen = text;
    }
    add_choice(names, spelled, need == Need::Optional ? chosen : "", help, need,
               [&target, choices](std::size_t i) { target = choices[i].second; });
  }

  //! Values that completion offers for an option or positional argument, which takes other values too.
  void suggest(const std::string& name, std::vector<std::string> values);

  //! Parses the arguments into the targets. Throws UsageError for invalid arguments and HelpPrinted after
  //! printing the help or completions.
  void parse();

  //! Whether `--json` was given. Every command has this flag.
  bool json() const { return json_; }

  //! Whether the option with this long name was given on the command line. Valid after `parse`.
  bool given(const std::string& name) const;

 private:
  struct Parser;

  void add_choice(const std::string& names, const std::vector<std::string>& choices,
                  const std::string& chosen, const std::string& help, Need need,
                  std::function<void(std::size_t)> take);
  //! The completions of the last word, one per line. Empty if the shell should offer files.
  std::string completions(const std::vector<std::string>& given) const;

  const Command& command_;
  std::vector<std::string> args_;
  std::unique_ptr<Parser> parser_;
  bool json_ = false;
};

//! Writes to standard output. Throws Error on failure (for example, a full disk).
void print(const std::string& text);

//! Writes `text` to a file, or to standard output if the path is empty or `-`.
void write_output(const std::string& path, const std::string& text);

//! Reads an entire file, or standard input if the path is `-`.
std::string read_input(const std::string& path);

}  // namespace penstock::tool
