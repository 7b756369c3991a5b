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

  std::vector<std::pair<const CLI::Option*, std::vector<std::string>>> choices;
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

std::string Arguments::completions(const std::vector<std::string>& words) const {
  const auto from_end = [&](std::size_t i) { return i < words.size() ? words[words.size() - 1 - i] : ""; };
  std::string word = from_end(0), name = from_end(1), prefix;
  if (const auto equals = word.find('='); word.starts_with("--") && equals != std::string::npos) {
    name = word.substr(0, equals);  // --as=s
    prefix = name + "=";
    word.erase(0, equals + 1);
  } else if (name == "=") {  // bash passes --as=s as three words
    name = from_end(2);
  } else if (word == "=") {
    word.clear();
  }
  const CLI::Option* option = name.starts_with("-") ? parser_->app.get_option_no_throw(name) : nullptr;
  const bool is_value = option != nullptr && option->get_items_expected_max() > 0;
  std::vector<std::string> candidates;
  for (const auto& [choice, values] : parser_->choices) {
    if (is_value ? choice == option : choice->get_positional()) candidates = values;
  }
  if (!is_value && word.starts_with("-")) {
    for (const CLI::Option* known : parser_->app.get_options()) {
      for (const std::string& known_name : known->get_lnames()) candidates.push_back("--" + known_name);
    }
  }
  std::string text;
  for (const std::string& candidate : candidates) {
    if (candidate.starts_with(word)) text += prefix + candidate + "\n";
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
