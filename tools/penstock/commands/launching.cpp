// Starts ranks from the tool and reports the result.
#include "commands/launching.h"

#include "base/json.h"
#include "cli/arguments.h"

#include <penstock/base/error.h>
#include <penstock/comm/launched_rank.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace penstock::tool {
namespace {

constexpr const char* kRole = "PENSTOCK_ROLE";

}  // namespace

bool is_rank_of(const std::string& command) {
  const char* role = std::getenv(kRole);
  return role != nullptr && role == command;
}

void refuse_as_rank(const std::string& command) {
  const comm::LaunchedRank found = comm::detect_rank();
  if (found.launcher == comm::LauncherKind::None || found.world_size == 1) return;
  throw UsageError("penstock " + command + " starts its own ranks, but it was itself started as a rank (" +
                       to_string(found) + ")",
                   {}, "start it once, for example with `srun -n 1`");
}

comm::LaunchOptions ranks_of(const std::string& command, int ranks, const std::vector<std::string>& args) {
  comm::LaunchOptions options;
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string(), command};
  options.command.insert(options.command.end(), args.begin(), args.end());
  options.ranks = ranks;
  options.environment[kRole] = command;
  print_notices(options);
  return options;
}

void print_notices(comm::LaunchOptions& options) {
  options.on_notice = [](const std::string& notice) {
    std::fprintf(stderr, "%s\n", notice.c_str());
    std::fflush(stderr);
  };
}

void ProgressReporter::attach(comm::LaunchOptions& options) {
  options.environment.merge(board_.environment());
  options.on_start = [this, then = std::move(options.on_start)](const std::vector<pid_t>& pids) {
    if (then) then(pids);
    print();
    board_.clear();
  };
}

void ProgressReporter::print_if_failed(const comm::LaunchResult& result) const {
  if (!result.ok && !result.signal) print();
}

void ProgressReporter::print() const {
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    const std::string progress = board_.of(Rank(rank));
    if (!progress.empty()) std::fprintf(stderr, "rank %d was in %s\n", rank, progress.c_str());
  }
  std::fflush(stderr);
}

void report_as_json(comm::LaunchOptions& options) {
  options.on_line = [](Rank rank, comm::OutputStream stream, std::string_view line) {
    JsonWriter json;
    const char* const name = stream == comm::OutputStream::Err ? "stderr" : "stdout";
    json.begin_object().field("rank", rank.value).field("stream", name);
    json.field("line", line).end_object();
    print(json.text() + "\n");
  };
}

std::string result_json(const comm::LaunchResult& result) {
  JsonWriter json;
  json.begin_object().field("ok", result.ok).field("restarts", result.restarts).key("first_failure");
  if (result.first_failure) {
    json.value(result.first_failure->value);
  } else {
    json.null();
  }
  json.field("cause", result.cause);
  json.key("ranks").begin_array();
  for (const comm::RankExit& exit : result.ranks) {
    json.begin_object()
        .field("rank", exit.rank.value)
        .field("code", exit.code)
        .field("signal", exit.signal.value_or(0));
    json.field("seconds", exit.seconds).end_object();
  }
  json.end_array().key("flight").begin_array();
  for (const std::string& finding : result.flight) json.value(finding);
  json.end_array().end_object();
  return json.text();
}

int finish_launch(const comm::LaunchResult& result, bool json) {
  if (json) {
    print(result_json(result) + "\n");
  } else if (!result.ok) {
    std::fprintf(stderr, "penstock: error: %s", to_string(result).c_str());
  }
  return result.exit_code();
}

}  // namespace penstock::tool
