// The report of a launch: how each rank ended, which failed first, and what the flight recorders show.
#include "base/text.h"

#include <penstock/comm/launcher.h>

#include <algorithm>
#include <cstring>

namespace penstock::comm {

std::string to_string(const RankExit& exit) {
  if (exit.signal) {
    const char* name = sigabbrev_np(*exit.signal);
    return str_cat("was killed by signal ", *exit.signal,
                   (name != nullptr ? " (SIG" + std::string(name) + ")" : ""));
  }
  return str_cat("exited with code ", exit.code);
}

std::string to_string(const LaunchResult& result) {
  if (result.ok) return {};
  std::string text;
  const auto failed = [&](const RankExit& exit) {
    return result.first_failure && exit.rank == *result.first_failure;
  };
  const auto found = std::find_if(result.ranks.begin(), result.ranks.end(), failed);
  if (result.timed_out) text += "the job exceeded its time limit\n";
  if (result.signal) text += str_cat("stopped by signal ", *result.signal, "\n");
  if (found != result.ranks.end()) {
    // The other ranks detect a rank that hangs, and the launcher kills it: its exit status is meaningless.
    const bool reported = !result.cause.empty() && (found->ok() || found->ended_by_launcher);
    text += str_cat(
        "rank ", found->rank.value, " failed first: ",
        (reported ? result.cause : "it " + to_string(*found) + " after " + format_seconds(found->seconds)),
        "\n");
    for (const std::string& line : found->last_lines) text += "  | " + line + "\n";
  } else if (result.first_failure) {
    text += str_cat("rank ", result.first_failure->value, " failed first, on another node",
                    (result.cause.empty() ? "" : ": " + result.cause), "\n");
  } else if (!result.cause.empty()) {
    text += result.cause + "\n";
  }
  for (const RankExit& exit : result.ranks) {
    if (exit.ok() || failed(exit)) continue;
    text += str_cat("rank ", exit.rank.value, " ", to_string(exit),
                    (exit.ended_by_launcher ? ", ended by the launcher" : ""), "\n");
  }
  for (const std::string& finding : result.flight) text += "flight recorder: " + finding + "\n";
  return text;
}

int LaunchResult::exit_code() const {
  if (ok) return 0;
  return signal ? 128 + *signal : 1;
}

}  // namespace penstock::comm
