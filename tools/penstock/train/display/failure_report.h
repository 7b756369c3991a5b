// Reports how a run failed in a few lines: one cause, the progress of the ranks, one hint. All other details
// go to a file.
#pragma once

#include "train/display/progress_board.h"
#include "train/rank/rank_error.h"

#include <penstock/comm/launcher.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::tool {

class FailureReport {
 public:
  struct Options {
    int ranks = 1;
    std::optional<std::filesystem::path> details{};  //!< file for the details of each failure
    std::string hint{};                              //!< used if the error has no hint of its own
  };
  explicit FailureReport(Options options) : options_(std::move(options)), board_(options_.ranks) {}

  //! Passes the progress board to the ranks and reports each failed attempt that the launcher restarts.
  void attach(comm::LaunchOptions& launch);
  //! Records the line if it is the error of a rank. Returns false for any other line.
  bool take(Rank rank, comm::OutputStream stream, std::string_view line);
  //! If the run failed, prints the cause. Returns the exit code.
  int finish(const comm::LaunchResult& result);

 private:
  ToolError cause_of(const comm::LaunchResult& result) const;
  std::string locations(const comm::LaunchResult& result, const std::string& cause) const;
  //! Appends to the details file. Returns whether it was written.
  bool write_details(const comm::LaunchResult& result) const;

  Options options_;
  ProgressBoard board_;
  std::map<Rank, ToolError> errors_;  // of the current attempt
};

}  // namespace penstock::tool
