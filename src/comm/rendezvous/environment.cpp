// Reads the environment of a rank.
#include "comm/rendezvous/environment.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <charconv>
#include <limits>

namespace penstock::comm {
namespace {

std::string required(const EnvironmentLookup& lookup, const char* name) {
  const char* text = lookup(name);
  if (text != nullptr && *text != '\0') return text;
  throw UsageError(
      std::string("the environment variable ") + name + " is not set", {},
      "start the program with `penstock run` or torchrun, or unset RANK and WORLD_SIZE for a world of one "
      "rank");
}

}  // namespace

std::int64_t parse_number(const std::string& variable, const std::string& text, std::int64_t most) {
  std::int64_t number = -1;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end && number >= 0 && number <= most) return number;
  throw UsageError(variable + "=" + quote(text) + " is not an integer from 0 to " + std::to_string(most));
}

std::optional<RankEnvironment> read_environment(const EnvironmentLookup& lookup) {
  if (lookup("RANK") == nullptr && lookup("WORLD_SIZE") == nullptr) return std::nullopt;
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  RankEnvironment found;
  found.world_size = static_cast<int>(parse_number("WORLD_SIZE", required(lookup, "WORLD_SIZE"), most));
  found.rank = Rank(parse_number("RANK", required(lookup, "RANK"), most));
  if (found.rank.value >= found.world_size) {
    throw UsageError("RANK=" + std::to_string(found.rank.value) +
                     " is not less than WORLD_SIZE=" + std::to_string(found.world_size));
  }
  if (const char* local = lookup("LOCAL_RANK")) {
    found.local_rank = static_cast<int>(parse_number("LOCAL_RANK", local, most));
  } else {
    found.local_rank = found.rank.value;
  }
  if (const char* attempt = lookup("TORCHELASTIC_RESTART_COUNT")) {
    found.attempt = static_cast<int>(parse_number("TORCHELASTIC_RESTART_COUNT", attempt, most));
  }
  if (const char* agent = lookup("TORCHELASTIC_USE_AGENT_STORE"))
    found.launcher_hosts_store = agent == std::string("True");
  if (const char* secret = lookup(kSecretVariable)) found.secret = JobSecret::parse(secret);
  if (found.world_size == 1 && lookup("MASTER_PORT") == nullptr) return found;
  found.master_address = required(lookup, "MASTER_ADDR");
  found.master_port =
      static_cast<std::uint16_t>(parse_number("MASTER_PORT", required(lookup, "MASTER_PORT"), 65535));
  return found;
}

}  // namespace penstock::comm
