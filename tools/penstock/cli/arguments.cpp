// Argument parser of one command, based on CLI11.
#include "cli/arguments.h"

#include "base/json.h"
#include "base/text.h"
#include "cli/paths.h"

#include <penstock/base/error.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>
#include <utility>

namespace penstock::tool {
namespace {

//! The candidates that start with `word`, one per line, each after `prefix`.
std::string matching(const std::vector<std::string>& candidates, const std::string& word,
                     const std::string& prefix) {
  std::string text;
  for (const std::string& candidate : candidates) {
    if (candidate.starts_with(word)) text += prefix + candidate + "\n";
  }
  return text;
}

//! bash passes `--as=s` as three words. Joins them again; the bool says whether it joined the last word.
std::pair<std::vector<std::string>, bool> joined_at_equals(const std::vector<std::string>& words) {
  std::vector<std::string> joined;
  bool last = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    last = words[i] == "=" && i > 0 && words[i - 1].starts_with("--");
    if (!last) {
      joined.push_back(words[i]);
      continue;
    }
    joined.back() += "=";
    if (i + 1 < words.size()) joined.back() += words[++i];
  }
  return {joined, last};
}

}  // namespace

struct Arguments::Parser {
  CLI::App app;

  CLI::Option* finish(CLI::Option* option, Need need) {
    if (need == Need::Required) option->required();
    return option;
  }

  template <class T>
  CLI::Option* number(const std::string& names, T& target, const std::string& help) {
    CLI::Option* option = app.add_option(names, target, help);
    numbers.emplace_back(option, std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>);
    return option;
  }

  //! Called after a CLI11 error. Throws UsageError if an option was given twice or needs a number and has
  //! none.
  void refuse_values() const {
    for (const CLI::Option* option : app.get_options()) {
      const std::vector<std::string>& values = option->results();
      if (option->get_items_expected_max() <= 1 && values.size() > 1)
        throw UsageError(
            str_cat(option->get_name(), " was given ", values.size(), " times: ", join(values, ", ")), {},
            "give it once");
    }
    for (const auto& [option, real] : numbers) {
      for (const std::string& value : option->results()) {
        double number = 0;
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
        const bool is_integer =
            error == std::errc() && number == std::floor(number) && std::abs(number) < 9e18;
        if (error == std::errc() && end == value.data() + value.size() && (real || is_integer)) continue;
        throw UsageError(
            option->get_name() + " must be a " + (real ? "" : "whole ") + "number, not " + quote(value), {},
            "for example " + option->get_name() + (real ? " 0.001" : " 4"));
      }
    }
  }

  static bool takes_value(const CLI::Option* option) {
    return option != nullptr && option->get_items_expected_max() > 0;
  }

  //! What precedes the last word: the option whose value that word is, or null, and the number of positional
  //! arguments.
  std::pair<const CLI::Option*, int> before_last(const std::vector<std::string>& words) const {
    const CLI::Option* option = nullptr;
    int positionals = 0;
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      const bool is_value = option != nullptr;
      option = nullptr;
      if (is_value) continue;
      if (words[i].size() > 1 && words[i].starts_with("-")) {
        const CLI::Option* named = app.get_option_no_throw(words[i]);
        if (takes_value(named)) option = named;
        positionals += words[i] == "--" ? 1 : 0;  // begins the arguments of a program
      } else {
        ++positionals;
      }
    }
    return {option, positionals};
  }

  //! The positional argument that takes the value with this index, or null.
  const CLI::Option* positional(int index) const {
    for (const CLI::Option* option : app.get_options()) {
      if (!option->get_positional()) continue;
      if (index < option->get_items_expected_max()) return option;
      index -= option->get_items_expected_max();
    }
    return nullptr;
  }

  //! All spellings of the options, long ones first.
  std::vector<std::string> names() const {
    std::vector<std::string> names, short_names;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      for (const std::string& name : option->get_snames()) short_names.push_back("-" + name);
    }
    names.insert(names.end(), short_names.begin(), short_names.end());
    return names;
  }

  std::vector<std::pair<const CLI::Option*, std::vector<std::string>>> choices;  // for completion
  std::vector<std::pair<const CLI::Option*, bool>> numbers;  // the bool: whether fractions are allowed
  std::vector<std::function<void()>> finish_flags;           // called after parsing
};

Arguments::Arguments(const Command& command, std::vector<std::string> args)
    : command_(command), args_(std::move(args)), parser_(std::make_unique<Parser>()) {
  CLI::App& app = parser_->app;
  app.description(std::string(command.help));
  app.name("penstock " + std::string(command.name));
  app.footer("Example:\n  " + std::string(command.example));
  app.set_help_flag("-h,--help", "print this help");
  app.get_formatter()->column_width(34);
  app.add_flag("--json", json_, "print JSON");
}

Arguments::~Arguments() = default;

void Arguments::positional(const std::string& name, std::string& target, const std::string& help, Need need) {
  parser_->finish(parser_->app.add_option(name, target, help), need);
}

void Arguments::positional(const std::string& name, std::vector<std::string>& target, const std::string& help,
                           Need need) {
  parser_->finish(parser_->app.add_option(name, target, help), need);
}

void Arguments::rest(const std::string& name, std::vector<std::string>& target, const std::string& help) {
  parser_->app.positionals_at_end();
  parser_->app.add_option(name, target, help)->required();
}

void Arguments::option(const std::string& names, std::string& target, const std::string& help, Need need) {
  CLI::Option* option = parser_->app.add_option(names, target, help);
  const bool plain = std::none_of(target.begin(), target.end(), [](unsigned char c) { return c < ' '; });
  if (need == Need::Optional && !target.empty()) option->default_str(plain ? target : json_quote(target));
  parser_->finish(option, need);
}

void Arguments::option(const std::string& names, std::int64_t& target, const std::string& help, Need need) {
  CLI::Option* option = parser_->number(names, target, help);
  if (need == Need::Optional) option->capture_default_str();
  parser_->finish(option, need);
}

void Arguments::option(const std::string& names, double& target, const std::string& help, Need need) {
  CLI::Option* option = parser_->number(names, target, help);
  if (need == Need::Optional) option->capture_default_str();
  parser_->finish(option, need);
}

void Arguments::option(const std::string& names, std::optional<std::string>& target,
                       const std::string& help) {
  parser_->app.add_option(names, target, help);
}

void Arguments::option(const std::string& names, std::optional<std::int64_t>& target,
                       const std::string& help) {
  parser_->number(names, target, help);
}

void Arguments::option(const std::string& names, std::optional<double>& target, const std::string& help) {
  parser_->number(names, target, help);
}

void Arguments::option(const std::string& names, std::vector<std::string>& target, const std::string& help) {
  parser_->app.add_option(names, target, help)->delimiter(',')->allow_extra_args(false);
}

void Arguments::flag(const std::string& names, bool& target, const std::string& help) {
  parser_->app.add_flag(names, target, help);
}

void Arguments::flag_or_list(const std::string& name, bool& target, std::vector<std::string>& list,
                             const std::string& help) {
  const auto given = std::make_shared<std::vector<std::string>>();
  parser_->app.add_flag(name, *given, help);
  parser_->finish_flags.push_back([given, &target, &list] {
    for (const std::string& text : *given) {
      if (text == "true") target = true;
      if (text == "true" || text == "false") continue;
      for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
        end = text.find(',', begin);
        list.push_back(text.substr(begin, end - begin));
      }
    }
  });
}

void Arguments::add_choice(const std::string& names, const std::vector<std::string>& choices,
                           const std::string& chosen, const std::string& help, Need need,
                           std::function<void(std::size_t)> take) {
  const auto read = [choices, names, take = std::move(take)](const std::string& text) {
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (choices[i] == text) return take(i);
    }
    throw UsageError(names + " cannot be " + quote(text), {},
                     did_you_mean(text, choices, "use one of " + join(choices, ", ")));
  };
  CLI::Option* option = parser_->app.add_option_function<std::string>(names, read, help);
  option->type_name(join(choices, "|"));
  if (!chosen.empty()) option->default_str(chosen);
  parser_->finish(option, need);
  parser_->choices.emplace_back(option, choices);
}

void Arguments::suggest(const std::string& name, std::vector<std::string> values) {
  parser_->choices.emplace_back(parser_->app.get_option(name), std::move(values));
}

std::string Arguments::completions(const std::vector<std::string>& given) const {
  const auto [words, split] = joined_at_equals(given);
  std::string word = words.empty() ? "" : words.back(), prefix;
  const auto [option, positionals] = parser_->before_last(words);
  if (parser_->app.get_positionals_at_end() && positionals > 0) return "";  // arguments of a program
  const CLI::Option* completed = option != nullptr ? option : parser_->positional(positionals);
  if (const auto equals = word.find('='); word.starts_with("--") && equals != std::string::npos) {
    completed = parser_->app.get_option_no_throw(word.substr(0, equals));
    if (!split) prefix = word.substr(0, equals + 1);
    word.erase(0, equals + 1);
  } else if (option == nullptr && word.starts_with("-")) {
    return matching(parser_->names(), word, "");
  }
  if (completed == nullptr) return "";
  if (const auto comma = word.rfind(','); completed->get_delimiter() == ',' && comma != std::string::npos) {
    prefix += word.substr(0, comma + 1);
    word.erase(0, comma + 1);
  }
  std::string text;
  for (const auto& [choice, values] : parser_->choices) {
    if (choice == completed) text += matching(values, word, prefix);
  }
  return text;
}

void Arguments::parse() {
  CLI::App& app = parser_->app;
  if (!args_.empty() && args_.front() == kCompleteWord) {
    print(completions({args_.begin() + 1, args_.end()}));
    throw HelpPrinted{};
  }
  std::vector<std::string> reversed(args_.rbegin(), args_.rend());  // CLI11 expects them in reverse order
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    throw HelpPrinted{};
  } catch (const CLI::ExtrasError&) {
    // Report the first unknown argument, with the nearest known option as a suggestion.
    std::vector<std::string> known;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
    const std::vector<std::string> left = app.remaining();
    const std::string unknown = left.empty() ? "" : left.front().substr(0, left.front().find('='));
    const std::string help = "see penstock " + std::string(command_.name) + " --help";
    throw UsageError(std::string(command_.name) + " does not take " + quote(unknown), {},
                     unknown.starts_with("--") ? did_you_mean(unknown, known, help) : help);
  } catch (const CLI::ParseError& error) {
    parser_->refuse_values();
    throw UsageError(std::string(command_.name) + ": " + error.what(), {},
                     "see penstock " + std::string(command_.name) + " --help");
  }
  for (const auto& finish : parser_->finish_flags) finish();
}

bool Arguments::given(const std::string& name) const {
  return parser_->app.count(name) > 0;
}

}  // namespace penstock::tool
