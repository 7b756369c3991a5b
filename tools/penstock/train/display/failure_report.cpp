// Reports why a run failed.
#include "train/display/failure_report.h"

#include "base/text.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <utility>

namespace penstock::tool {
namespace {

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// Removes the excerpt of the schedule that the runtime adds to the hint. The message already names the
// action.
std::string without_schedule(const std::string& hint) {
  const auto at = hint.find("nearby actions in the schedule: ");
  if (at == std::string::npos) return hint;
  return at >= 2 ? hint.substr(0, at - 2) : "";
}

const comm::RankExit* exit_of(const comm::LaunchResult& result, Rank rank) {
  const auto found = std::find_if(result.ranks.begin(), result.ranks.end(),
                                  [&](const comm::RankExit& exit) { return exit.rank == rank; });
  return found == result.ranks.end() ? nullptr : &*found;
}

//! Returns the numbers that follow a space in the text. They include the ranks named in a failure cause.
std::vector<int> numbers_in(const std::string& text) {
  std::vector<int> numbers;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = std::isdigit(static_cast<unsigned char>(text[i])) != 0 && i > 0 && text[i - 1] == ' ';
    if (begins) numbers.push_back(std::atoi(text.c_str() + i));
  }
  return numbers;
}

}  // namespace

void FailureReport::attach(comm::LaunchOptions& launch) {
  launch.environment.merge(board_.environment());
  launch.environment[kErrorLinesVariable] = "1";
  launch.on_start = [this, then = std::move(launch.on_start)](const std::vector<pid_t>& pids) {
    if (then) then(pids);
    errors_.clear();
    board_.clear();
  };
  launch.on_restart = [this, limit = launch.max_restarts](const comm::LaunchResult& result) {
    const ToolError cause = cause_of(result);
    write_details(result);
    std::fprintf(stderr, "%s%s\nrestarting (%d of %d)\n", first_line(cause.message).c_str(),
                 locations(result, cause.message).c_str(), result.restarts + 1, limit);
    std::fflush(stderr);
  };
}

bool FailureReport::take(Rank rank, comm::OutputStream stream, std::string_view line) {
  if (stream == comm::OutputStream::Out) return false;
  const auto error = read_error_line(line);
  if (error) errors_[rank] = *error;
  return error.has_value();
}

ToolError FailureReport::cause_of(const comm::LaunchResult& result) const {
  if (result.timed_out) return {"the run exceeded its deadline", "", "", 1};
  if (!result.first_failure) return {result.cause.empty() ? "the run failed" : result.cause, "", "", 1};
  const Rank rank = *result.first_failure;
  const std::string failed = str_cat("rank ", rank.value, " failed first: ");
  const comm::RankExit* exit = exit_of(result, rank);
  // A rank that hangs is detected by the others and killed by the launcher, so its exit status says nothing
  // about the cause.
  const bool exit_is_uninformative = exit == nullptr || exit->ok() || exit->ended_by_launcher;
  if (exit_is_uninformative && !result.cause.empty()) return {failed + result.cause, "", "", 1};
  const auto reported = errors_.find(rank);
  if (reported == errors_.end())
    return {failed + "it " + (exit ? to_string(*exit) + " after " + format_seconds(exit->seconds) : "failed"),
            "", "", 1};
  ToolError error = reported->second;
  error.hint = without_schedule(error.hint);
  if (error.code != 2) error.message = failed + error.message;
  return error;
}

std::string FailureReport::locations(const comm::LaunchResult& result, const std::string& cause) const {
  std::vector<int> order = numbers_in(cause);
  if (result.first_failure) order.insert(order.begin(), result.first_failure->value);
  for (int rank = 0; rank < board_.ranks(); ++rank) order.push_back(rank);
  constexpr std::size_t most = 4;
  std::set<int> seen;
  std::vector<std::string> texts;
  for (const int rank : order) {
    if (rank >= board_.ranks() || texts.size() == most || !seen.insert(rank).second) continue;
    const std::string location = board_.of(Rank(rank));
    if (!location.empty()) texts.push_back(str_cat("rank ", rank, " was in ", location));
  }
  return texts.empty() ? "" : "\n  " + join(texts, "; ");
}

bool FailureReport::write_details(const comm::LaunchResult& result) const {
  if (!options_.details) return false;
  std::ofstream file(*options_.details, std::ios::app);
  file << "attempt " << result.restarts << ": " << cause_of(result).message << "\n";
  for (const comm::RankExit& exit : result.ranks) {
    file << "rank " << exit.rank.value << " " << to_string(exit) << " after " << format_seconds(exit.seconds)
         << (exit.ended_by_launcher ? ", ended by the launcher" : "");
    if (const std::string location = board_.of(exit.rank); !location.empty()) file << ", in " << location;
    file << "\n";
    if (const auto reported = errors_.find(exit.rank); reported != errors_.end())
      file << reported->second.text();
    for (const std::string& line : exit.last_lines)
      if (!read_error_line(line)) file << "  | " << line << "\n";
  }
  for (const std::string& finding : result.flight) file << "flight recorder: " << finding << "\n";
  file.close();
  return static_cast<bool>(file);
}

int FailureReport::finish(const comm::LaunchResult& result) {
  // After a signal, only the error of a rank that could not finish its step or its checkpoint is of interest.
  const bool reported = result.first_failure && errors_.contains(*result.first_failure);
  if (result.ok || (result.signal && !reported)) return result.exit_code();
  const bool written = write_details(result);
  ToolError error = cause_of(result);
  if (error.hint.empty()) error.hint = options_.hint;
  if (written) error.hint += (error.hint.empty() ? "see " : "; details in ") + options_.details->string();
  error.message = first_line(error.message);
  if (!error.context.empty()) error.message += " (" + std::exchange(error.context, "") + ")";
  if (error.code != 2) error.message += locations(result, error.message);
  std::fputs(error.text().c_str(), stderr);
  std::fflush(stderr);
  return error.code == 2 && !result.signal ? 2 : result.exit_code();
}

}  // namespace penstock::tool
