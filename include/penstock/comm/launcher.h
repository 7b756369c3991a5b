// Starts the ranks of a job as child processes with torchrun's environment, hosts their store, passes their
// output on, and ends them all when one fails. `penstock run`, `penstock train` and the tests stand on it.
#pragma once

#include <penstock/base/ids.h>

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct LaunchOptions {
  std::vector<std::string> command;  //!< program and arguments
  int ranks = 1;                     //!< on this node
  int nodes = 1;
  int node_rank = 0;
  std::string host = "127.0.0.1";  //!< where node 0's launcher hosts the store
  std::uint16_t port = 0;          //!< 0: any free port (one node only)
  //! What the launchers of several nodes have in common: a file with the same 16 bytes or more on every node, from
  //! which the job's secret is derived. Empty: node 0 makes a secret and hands it out through its store.
  std::filesystem::path token_file;
  int max_restarts = 0;
  std::map<std::string, std::string> environment;  //!< on top of this process's
  std::filesystem::path log_dir;           //!< if set: `attempt<A>/rank<R>.out` and `.err` instead of lines
  std::chrono::milliseconds grace{10000};  //!< for the other ranks, after a failure, before they are ended
  std::optional<std::chrono::milliseconds> deadline;  //!< for the whole job; then all ranks are ended
  std::chrono::milliseconds join_timeout{120000};  //!< for the launchers of several nodes to find each other
  bool pass_signals = true;                        //!< SIGINT, SIGTERM and SIGHUP go to the ranks

  //! Gets every line of output; without it they go to this process's stdout and stderr as `[rank] line`. A line of a
  //! progress bar has its carriage return at the end; a line of more than 1 MiB comes in several.
  std::function<void(Rank rank, bool is_error, std::string_view line)> on_line;
  //! Called when the ranks of an attempt have been started.
  std::function<void(const std::vector<pid_t>& pids)> on_start;
  //! Called with a failed attempt that another one follows; without it the report goes to stderr.
  std::function<void(const struct LaunchResult& result)> on_restart;
};

//! How one rank ended.
struct RankExit {
  Rank rank;
  pid_t pid = 0;
  int code = 0;    //!< the exit code, if it exited
  int signal = 0;  //!< the signal that ended it, or 0
  bool ended_by_launcher = false;
  double seconds = 0;  //!< after the start of the attempt
  std::vector<std::string> last_lines;

  bool ok() const { return code == 0 && signal == 0; }
  //! `exited with code 3`, `was killed by signal 9 (SIGKILL)`
  std::string text() const;
};

struct LaunchResult {
  bool ok = false;
  int restarts = 0;
  int signal = 0;                     //!< the signal that this launcher was asked to stop by, or 0
  bool timed_out = false;             //!< the deadline passed
  std::vector<RankExit> ranks;        //!< of the last attempt, those of this node
  std::optional<Rank> first_failure;  //!< nothing if it was a node
  std::string cause;                  //!< what the ranks or another node say of it; empty if nothing
  std::vector<std::string> flight;    //!< what the flight recorders say

  //! A few lines for people: the first failure, its last lines, what the others waited in.
  std::string report() const;
  //! What the launching program should exit with: 0, 1 for a failed run, or 128 + the signal it was asked to
  //! stop by.
  int exit_code() const;
};

//! Runs the job to its end, and ends every process that the ranks have started and left behind. UsageError for a
//! command that cannot be started. While it runs, this process ignores SIGPIPE and has a child process more, which
//! cleans up if this one is killed; the soft limit of file descriptors is raised to the hard one.
LaunchResult launch(const LaunchOptions& options);

}  // namespace penstock
