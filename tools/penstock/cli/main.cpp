// Entry point of both executables. Finds the command and runs its handler or the executable that has it.
// Converts errors to messages and exit codes: 0 success, 1 failure or negative result, 2 bad usage.
#include "base/json.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/start_torch.h"
#include "train/rank/rank_error.h"

#include <penstock/base/error.h>
#include <penstock/version.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::tool {
namespace {

std::string overview() {
  std::string text =
      "Pipeline, tensor and data parallel training for libtorch.\n\n"
      "Usage: penstock COMMAND [arguments]\n\nCommands:\n";
  std::size_t width = 0;
  for (const Command& command : commands()) width = std::max(width, command.name.size());
  for (const Command& command : commands()) {
    text += "  " + std::string(command.name) + std::string(width + 2 - command.name.size(), ' ');
    text += std::string(command.help) + "\n";
  }
  return text +
         "\n`penstock COMMAND --help` describes a command and shows an example; `penstock --version` prints "
         "the version.\n"
         "Exit code: 0 success, 1 failure or a negative result, 2 incorrect usage, 130 or 143 stopped by "
         "Ctrl-C or SIGTERM.\n"
         "Environment: NO_COLOR=1 disables colors; PENSTOCK_LOG=info|debug|trace prints the library's log.\n";
}

const Command& command_named(const std::string& name) {
  if (const Command* command = find_command(name)) return *command;
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  throw UsageError((name.starts_with("-") ? "unknown option " : "unknown command ") + quote(name), {},
                   did_you_mean(name, names, "see penstock --help", "penstock "));
}

//! Whether the first word asks for help, of the tool or of the command that follows.
bool is_help(std::string_view word) {
  return word == "--help" || word == "-h" || word == "help";
}

int run(std::vector<std::string> args);

//! Completes the last of the words that follow `penstock`.
int complete(std::vector<std::string> words) {
  const bool help = words.size() == 2 && is_help(words.front());
  if (words.size() > 1 && !help) {
    const std::string name = words.front();
    words.front() = kCompleteWord;
    words.insert(words.begin(), name);
    return find_command(name) == nullptr ? 0 : run(std::move(words));
  }
  std::vector<std::string_view> candidates;
  for (const Command& command : commands()) candidates.push_back(command.name);
  if (!help) candidates.insert(candidates.end(), {"help", "--help", "--version", "-h"});
  const std::string word = words.empty() ? "" : words.back();
  std::string text;
  for (const std::string_view candidate : candidates) {
    const bool is_option = candidate.starts_with("-");
    if (candidate.starts_with(word) && (!is_option || !word.empty())) text += std::string(candidate) + "\n";
  }
  print(text);
  return 0;
}

//! Prints the version of Penstock alone: `penstock version` also loads libtorch and prints its version.
int print_version(const std::vector<std::string>& args) {
  if (args.empty()) {
    print("penstock " + version() + "\n");
    return 0;
  }
  if (args != std::vector<std::string>{"--json"})
    throw UsageError("--version does not take " + quote(args.back()), {}, "see penstock --help");
  JsonWriter json;
  print(json.begin_object().field("penstock", version()).end_object().text() + "\n");
  return 0;
}

int run(std::vector<std::string> args) {
  if (args.empty()) throw UsageError("no command was given", {}, "see penstock --help");
  const std::string first = args.front();
  args.erase(args.begin());
  if (first == "--version") return print_version(args);
  if (is_help(first)) {
    if (args.empty()) {
      print(overview());
      return 0;
    }
    return run({args.front(), "--help"});
  }
  if (first == kCompleteWord) return complete(args);
  const Command& command = command_named(first);
  const Handler handler = handler_of(command.name);
  if (handler == nullptr) start_torch(command, args);
  prepare();
  Arguments arguments(command, std::move(args));
  return handler(arguments);
}

//! Prints the error. A rank passes it to the command that started it, which prints one error for all ranks.
int print_error(const ToolError& error) {
  const std::string text = errors_are_collected() ? to_line(error) + "\n" : error.text();
  std::fputs(text.c_str(), stderr);
  return error.code;
}

}  // namespace
}  // namespace penstock::tool

int main(int argc, char** argv) {
  using namespace penstock;
  try {
    return tool::run({argv + 1, argv + argc});
  } catch (const tool::HelpPrinted&) {
    return 0;
  } catch (const UsageError& error) {
    return tool::print_error({error.message(), to_string(error.context()), error.hint(), 2});
  } catch (const Error& error) {
    return tool::print_error({error.message(), to_string(error.context()), error.hint(), 1});
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const auto stack = text.find("\nException raised from ");  // drop libtorch's stack trace
    return tool::print_error({text.substr(0, stack), "", "", 1});
  }
}
