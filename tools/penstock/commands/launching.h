// What the commands share that start ranks: starting this very command again as a rank, and showing how a run
// ended.
#pragma once

#include <penstock/comm/launcher.h>
#include <penstock/train/whereabouts.h>

#include <string>
#include <vector>

namespace penstock::tool {

//! Whether this process is a rank that `start_ranks_of` started for this command.
bool is_rank_of(const std::string& command);

//! Options that start this executable's `command words…` as ranks.
LaunchOptions ranks_of(const std::string& command, int ranks, const std::vector<std::string>& words);

//! Where ranks were when an attempt ended badly, of those that say it (`penstock train`).
class Places {
 public:
  explicit Places(int ranks) : board_(ranks) {}
  //! Gives the ranks the board; what they said in a failed attempt is printed when the next one starts.
  void attach(LaunchOptions& options);
  //! For the last attempt.
  void print_unless_well(const LaunchResult& result) const;

 private:
  void complain() const;

  train::WhereaboutsBoard board_;
};

//! With `json`, every line of output and the end become objects on standard output.
void report_as_json(LaunchOptions& options);
std::string result_json(const LaunchResult& result);

//! Prints how a run ended (people read it on stderr) and gives the exit code.
int finish_launch(const LaunchResult& result, bool json);

}  // namespace penstock::tool
