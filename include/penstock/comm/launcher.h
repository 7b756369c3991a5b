// Starts the ranks of a job as child processes with torchrun's environment variables, hosts their store,
// forwards their output, and terminates all of them when one fails. Used by `penstock run`, `penstock train`
// and the tests.
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

namespace penstock::comm {

//! The stream on which a rank wrote a line.
enum class OutputStream { Out, Err };

//! What to start, on which nodes, and how to report on it.
struct LaunchOptions {
  std::vector<std::string> command{};   //!< program and arguments
  int ranks = 1;                        //!< on this node
  int nodes = 1;                        //!< number of nodes; each runs its own launcher
  int node_rank = 0;                    //!< of this node
  std::string host = "127.0.0.1";       //!< address at which the launcher of node 0 hosts the store
  std::optional<std::uint16_t> port{};  //!< nullopt: any free port (one node only)
  //! For several nodes: a file of at least 16 bytes, identical on every node, from which the job secret is
  //! derived. If unset, node 0 generates a secret and distributes it through its store.
  std::optional<std::filesystem::path> token_file{};
  int max_restarts = 0;                              //!< restarts of all ranks after a failure
  std::map<std::string, std::string> environment{};  //!< added to the environment of this process
  //! If set: output goes to `attempt<A>/rank<R>.out` and `.err` here.
  std::optional<std::filesystem::path> log_dir{};
  //! Time that the other ranks get to exit after a failure.
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  std::optional<std::chrono::milliseconds> deadline{};  //!< time limit of the job, with all restarts
  //! Time for the launchers of all nodes to connect.
  std::chrono::milliseconds join_timeout = std::chrono::seconds(120);
  bool pass_signals = true;  //!< forward SIGINT, SIGTERM and SIGHUP to the ranks
  //! The ranks end by themselves after SIGINT: the first SIGINT or SIGTERM is forwarded as SIGINT, and the
  //! ranks get any time they need. A second signal kills them.
  bool graceful_stop = false;

  //! Called with every line of output. If unset, lines go to stdout and stderr of this process as
  //! `[rank] line`. A carriage return also ends a line, as progress bars need. Lines over 1 MiB are split.
  std::function<void(Rank rank, OutputStream stream, std::string_view line)> on_line{};
  //! Called after the ranks of an attempt have started.
  std::function<void(const std::vector<pid_t>& pids)> on_start{};
  //! Called with the result of a failed attempt before the restart. If unset, the report is a notice.
  std::function<void(const struct LaunchResult& result)> on_restart{};
  //! Called with notices for the user: a node is late, the job restarts or does not. If unset, they are
  //! logged as warnings.
  std::function<void(const std::string& notice)> on_notice{};
};

//! How one rank ended.
struct RankExit {
  Rank rank;
  pid_t pid = 0;
  int code = 0;                         //!< exit code, if the process exited
  std::optional<int> signal;            //!< that killed the process
  bool ended_by_launcher = false;       //!< exited after the launcher began to terminate all ranks
  double seconds = 0;                   //!< from the start of the attempt to the exit
  std::vector<std::string> last_lines;  //!< of its output

  bool ok() const { return code == 0 && !signal; }
};

//! `exited with code 3`, `was killed by signal 9 (SIGKILL)`.
std::string to_string(const RankExit& exit);

//! How a job ended.
struct LaunchResult {
  bool ok = false;
  int restarts = 0;
  std::optional<int> signal;          //!< that stopped this launcher
  bool timed_out = false;             //!< the deadline expired
  std::vector<RankExit> ranks;        //!< ranks of this node in the last attempt
  std::optional<Rank> first_failure;  //!< nullopt if a node failed, not a rank
  std::string cause;                  //!< as reported by the ranks or by another node; may be empty
  std::vector<std::string> flight;    //!< findings of the flight recorders

  //! Returns the exit code for the launching program: 0 for success, 1 for a failed job, or 128 plus the
  //! signal that stopped the launcher.
  int exit_code() const;
};

//! A report for people: the first failure, its last lines of output, the operations that the other ranks
//! waited in. Empty if the job succeeded.
std::string to_string(const LaunchResult& result);

//! Runs the job to completion and kills every process that the ranks left behind. Throws UsageError if the
//! command cannot be started, and StorageError if a log cannot be written. While it runs, this process
//! ignores SIGPIPE and has one extra child process that cleans up if this one is killed. Raises the soft
//! limit of file descriptors to the hard limit (at most 65536).
LaunchResult launch(const LaunchOptions& options);

}  // namespace penstock::comm
