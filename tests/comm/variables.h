// Reads environments that are given as maps.
#pragma once

#include "comm/rendezvous/environment.h"
#include "support/error_message.h"

#include <map>
#include <string>

namespace penstock::test {

using Variables = std::map<std::string, std::string>;

//! The process that `read` pretends to be the launcher's daemon.
constexpr std::int64_t kDaemon = 4711;

inline comm::EnvironmentLookup lookup_in(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

inline comm::LaunchedRank read(const Variables& variables) {
  return comm::read_environment(lookup_in(variables), [](const char*) { return kDaemon; });
}

//! The text of the UsageError, or "no error".
inline std::string error_of(const Variables& variables) {
  return error_message<UsageError>([&] { read(variables); });
}

//! `base` with `changes`. An empty value removes a variable.
inline Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    if (value.empty())
      base.erase(name);
    else
      base[name] = value;
  }
  return base;
}

}  // namespace penstock::test
