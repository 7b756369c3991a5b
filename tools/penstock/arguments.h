// The command line of one command: it declares its options, then parses. The only header of the tool's
// parser; CLI11 itself, which costs seconds to compile, is included in arguments.cpp alone.
#pragma once

#include "command.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tool {

//! Thrown by `parse` when the command line is answered already (`--help`).
struct Answered {};

class Arguments {
 public:
  //! What stands after the command's name.
  Arguments(const Command& command, std::vector<std::string> words);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  enum class Need { Optional, Required };

  //! A word by its place: `NAME`, `FILE.csv`. The help shows a default where the target has one.
  void positional(const std::string& name, std::string& target, const std::string& help,
                  Need need = Need::Required);
  //! Any number of words.
  void positional(const std::string& name, std::vector<std::string>& target, const std::string& help,
                  Need need = Need::Required);
  //! The first word that is no option, and all that follow it, options or not; `--` may stand before it.
  void rest(const std::string& name, std::vector<std::string>& target, const std::string& help);

  //! `--name VALUE`; `names` may hold several spellings: `-o,--output`.
  void option(const std::string& names, std::string& target, const std::string& help,
              Need need = Need::Optional);
  void option(const std::string& names, std::int64_t& target, const std::string& help,
              Need need = Need::Optional);
  void option(const std::string& names, double& target, const std::string& help, Need need = Need::Optional);
  void option(const std::string& names, std::optional<std::string>& target, const std::string& help);
  void option(const std::string& names, std::optional<std::int64_t>& target, const std::string& help);
  void option(const std::string& names, std::optional<double>& target, const std::string& help);
  //! Given several times or with commas.
  void option(const std::string& names, std::vector<std::string>& target, const std::string& help);

  void flag(const std::string& names, bool& target, const std::string& help);

  //! One of a few words, each with its value: `choice("--as", form, {{"csv", Form::Csv}, …}, "…")`.
  template <class E>
  void choice(const std::string& names, E& target, const std::vector<std::pair<std::string, E>>& words,
              const std::string& help) {
    std::vector<std::string> spelled;
    std::string chosen;
    for (const auto& [word, value] : words) {
      spelled.push_back(word);
      if (value == target) chosen = word;
    }
    choice_of_words(names, spelled, chosen, help,
                    [&target, words](std::size_t i) { target = words[i].second; });
  }

  //! Reads the words into the targets. Throws UsageError for what does not fit, Answered after printing the
  //! help.
  void parse();

  //! Whether `--json` was given; every command has it.
  bool json() const { return json_; }

  //! Whether an option, by its long name, was given on the command line. After `parse`.
  bool given(const std::string& name) const;

 private:
  struct Parser;

  void choice_of_words(const std::string& names, const std::vector<std::string>& words,
                       const std::string& chosen, const std::string& help,
                       std::function<void(std::size_t)> take);

  const Command& command_;
  std::vector<std::string> words_;
  std::unique_ptr<Parser> parser_;
  bool json_ = false;
};

//! Writes to standard output; an error if it cannot be written (a full disk).
void print(const std::string& text);

//! Writes a whole file, or standard output where the path is empty or `-`.
void write_output(const std::string& path, const std::string& text);

//! Reads a whole file, or standard input where the path is `-`.
std::string read_input(const std::string& path);

}  // namespace penstock::tool
