// Helpers of the commands that start ranks: they start the same command again as a rank and report how the
// run ended.
#pragma once

#include "train/display/progress_board.h"

#include <penstock/comm/launcher.h>

#include <string>
#include <vector>

namespace penstock::tool {

//! Whether this process is a rank that was started with the options of `ranks_of(command, …)`.
bool is_rank_of(const std::string& command);

//! Throws UsageError if a launcher started this process as one of several ranks: each of them would start its
//! own ranks.
void refuse_as_rank(const std::string& command);

//! Launch options that start this executable with `command args…` on each rank.
comm::LaunchOptions ranks_of(const std::string& command, int ranks, const std::vector<std::string>& args);

//! Prints the notices of the launcher (waiting for a node, restarting) on standard error.
void print_notices(comm::LaunchOptions& options);

//! Reports the progress of the ranks when an attempt fails. Only programs that publish it (`penstock train`)
//! are covered.
class ProgressReporter {
 public:
  explicit ProgressReporter(int ranks) : board_(ranks) {}
  //! Passes the progress board to the ranks. The progress of a failed attempt is printed when the next
  //! attempt starts.
  void attach(comm::LaunchOptions& options);
  //! Prints the progress of the last attempt if it failed.
  void print_if_failed(const comm::LaunchResult& result) const;

 private:
  void print() const;

  ProgressBoard board_;
};

//! Prints every output line of the ranks as a JSON object on standard output.
void report_as_json(comm::LaunchOptions& options);
std::string result_json(const comm::LaunchResult& result);

//! Prints how a run ended, as JSON on stdout or as text on stderr, and returns the exit code.
int finish_launch(const comm::LaunchResult& result, bool json);

}  // namespace penstock::tool
