// Runs ranks as processes: the test program starts itself once per rank to run one named function. A deadline
// terminates and reports all of them, so that no test can hang.
#pragma once

#include <penstock/comm/launcher.h>

#include <functional>
#include <string>
#include <vector>

namespace penstock::test {

//! Registers a function for ranks. It returns the exit code; an exception ends its process.
struct RankFunction {
  RankFunction(const char* name, std::function<int()> body);
};

struct RanksOptions {
  std::chrono::milliseconds deadline{120000};
  std::map<std::string, std::string> environment;
  int max_restarts = 0;
  std::function<void(Rank, comm::OutputStream stream, std::string_view)> on_line;
  std::function<void(const std::vector<pid_t>&)> on_start;
};

struct RanksOutcome {
  comm::LaunchResult result;
  std::vector<std::vector<std::string>> lines;  //!< by rank, both streams

  //! All output, for a failed assertion.
  std::string text() const;
};

RanksOutcome run_process_ranks(const std::string& function, int ranks, const RanksOptions& options = {});

}  // namespace penstock::test
