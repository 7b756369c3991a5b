// How a run of ranks failed, in a few lines: one cause, where the ranks were, one hint. Everything else that
// is known goes to a file.
#pragma once

#include "rank_error.h"

#include <penstock/comm/launcher.h>
#include <penstock/train/whereabouts.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::tool {

class FailureReport {
 public:
  struct Options {
    int ranks = 1;
    std::string details{};  //!< a file for all that is known of each failure; empty: none
    std::string hint{};     //!< what to do where the error itself does not say
  };
  explicit FailureReport(Options options) : options_(std::move(options)), board_(options_.ranks) {}

  //! Lets ranks say where they are, and reports attempts after which the launcher starts again.
  void attach(LaunchOptions& launch);
  //! Takes a line of output that is a rank's error; false if it is any other line.
  bool take(Rank rank, bool is_error, std::string_view line);
  //! Prints why the run failed, if it did. Returns the exit code.
  int finish(const LaunchResult& result);

 private:
  ToolError cause_of(const LaunchResult& result) const;
  std::string locations(const LaunchResult& result, const std::string& cause) const;
  //! Whether there is such a file now.
  bool write_details(const LaunchResult& result) const;

  Options options_;
  train::WhereaboutsBoard board_;
  std::map<int, ToolError> errors_;  // of the ranks of this attempt
};

}  // namespace penstock::tool
