// Renames tensors by rules.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/rename.h>

#include <algorithm>
#include <optional>

namespace penstock::checkpoint {
namespace {

//! Matches `pattern` with the start of `name`. Each `*` matches as little as possible, but no dot. Returns
//! the number of matched characters, which end at a dot or at the end of the name.
std::optional<std::size_t> match_start(std::string_view pattern, std::string_view name,
                                       std::vector<std::string>& matched) {
  if (pattern.empty()) return name.empty() || name[0] == '.' ? std::optional<std::size_t>(0) : std::nullopt;
  if (pattern[0] != '*') {
    if (name.empty() || name[0] != pattern[0]) return std::nullopt;
    const auto rest = match_start(pattern.substr(1), name.substr(1), matched);
    return rest ? std::optional(*rest + 1) : std::nullopt;
  }
  for (std::size_t length = 0; length <= name.size(); ++length) {
    matched.emplace_back(name.substr(0, length));
    if (const auto rest = match_start(pattern.substr(1), name.substr(length), matched)) return *rest + length;
    matched.pop_back();
    if (length < name.size() && name[length] == '.') break;
  }
  return std::nullopt;
}

std::string filled(std::string_view pattern, const std::vector<std::string>& matched) {
  std::string text;
  std::size_t next = 0;
  for (const char character : pattern) {
    if (character == '*') {
      text += matched.at(next++);
    } else {
      text += character;
    }
  }
  return text;
}

std::string joined_path(std::string_view path, std::string_view rest) {
  return str_cat(path, (path.empty() || rest.empty() ? "" : "."), rest);
}

}  // namespace

RenameRule parse_rename_rule(std::string_view text) {
  const std::size_t equals = text.find('=');
  const char* const hint = "for example transformer.h.*=blocks.*";
  if (equals == std::string_view::npos || text.size() == 1)
    throw UsageError("the rename rule " + quote(text, 200) + " is not of the form FROM=TO", {}, hint);
  RenameRule rule{std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
  if (std::count(rule.to.begin(), rule.to.end(), '*') > std::count(rule.from.begin(), rule.from.end(), '*'))
    throw UsageError("the rename rule " + quote(text, 200) + " has more '*' in TO than in FROM", {}, hint);
  return rule;
}

std::string renamed(std::string name, const std::vector<RenameRule>& rules, std::vector<int>& uses) {
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const RenameRule& rule = rules[i];
    std::vector<std::string> matched;
    std::optional<std::size_t> length = 0;  // an empty path matches every name
    if (!rule.from.empty()) length = match_start(rule.from, name, matched);
    if (!length) continue;
    ++uses[i];
    std::string_view rest = std::string_view(name).substr(*length);
    if (rest.starts_with('.')) rest.remove_prefix(1);
    name = joined_path(filled(rule.to, matched), rest);
  }
  return name;
}

}  // namespace penstock::checkpoint
