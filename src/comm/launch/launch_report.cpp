// The report of a launch: how each rank ended, which failed first, and what the flight recorders show.
#include <penstock/base/text.h>
#include <penstock/comm/launcher.h>

#include <algorithm>
#include <cstring>

namespace penstock::comm {

std::string RankExit::text() const {
  if (signal != 0) {
    const char* name = sigabbrev_np(signal);
    return "was killed by signal " + std::to_string(signal) +
           (name != nullptr ? " (SIG" + std::string(name) + ")" : "");
  }
  return "exited with code " + std::to_string(code);
}

std::string LaunchResult::report() const {
  if (ok) return {};
  std::string text;
  const auto failed = [this](const RankExit& exit) { return first_failure && exit.rank == *first_failure; };
  const auto found = std::find_if(ranks.begin(), ranks.end(), failed);
  if (timed_out) text += "the job exceeded its time limit\n";
  if (signal != 0) text += "stopped by signal " + std::to_string(signal) + "\n";
  if (found != ranks.end()) {
    // The other ranks detect a rank that hangs, and the launcher kills it: its exit status tells nothing.
    const bool told = !cause.empty() && (found->ok() || found->ended_by_launcher);
    text += "rank " + std::to_string(found->rank.value) + " failed first: " +
            (told ? cause : "it " + found->text() + " after " + format_seconds(found->seconds)) + "\n";
    for (const std::string& line : found->last_lines) text += "  | " + line + "\n";
  } else if (first_failure) {
    text += "rank " + std::to_string(first_failure->value) + " failed first, on another node" +
            (cause.empty() ? "" : ": " + cause) + "\n";
  } else if (!cause.empty()) {
    text += cause + "\n";
  }
  for (const RankExit& exit : ranks) {
    if (exit.ok() || failed(exit)) continue;
    text += "rank " + std::to_string(exit.rank.value) + " " + exit.text() +
            (exit.ended_by_launcher ? ", ended by the launcher" : "") + "\n";
  }
  for (const std::string& finding : flight) text += "flight recorder: " + finding + "\n";
  return text;
}

int LaunchResult::exit_code() const {
  if (ok) return 0;
  return signal != 0 ? 128 + signal : 1;
}

}  // namespace penstock::comm
