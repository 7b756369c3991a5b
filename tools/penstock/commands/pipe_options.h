// Pipeline options of the commands that run an exported model: how to split it, on how many ranks, with which
// schedule.
#pragma once

#include "cli/arguments.h"
#include "config/device.h"
#include "config/rank_counts.h"

#include <penstock/pipe/pipe.h>

#include <optional>
#include <string>
#include <vector>

namespace penstock::tool {

//! How to split an exported model into stages.
struct SplitOptions {
  std::vector<std::string> split;
  std::vector<std::string> positions;  //!< of `--cuts`
  std::optional<std::int64_t> stages;
  pipe::BalanceBy by = pipe::BalanceBy::Parameters;

  void declare(Arguments& arguments);
  //! Returns nullopt if no split option is given.
  std::optional<pipe::SplitSpec> spec() const;
};

//! The ranks, schedule, backend and device of a run.
struct RankOptions {
  RankRequest rank_request;
  std::optional<std::int64_t> stages_per_rank, microbatches;
  std::string schedule;
  std::string backend = "auto";
  DeviceChoice device = DeviceChoice::Auto;
  std::string device_reason;  //!< one line, set by `resolve`

  void declare(Arguments& arguments, const std::string& default_schedule);
  //! Resolves device and backend, and returns the numbers of ranks. Throws UsageError if the options are
  //! invalid or contradict each other.
  RankCounts resolve();
};

}  // namespace penstock::tool
