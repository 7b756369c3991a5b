// The pipeline options of the commands that work on an exported model: where it is cut, over how many ranks,
// by which schedule.
#pragma once

#include "arguments.h"
#include "device.h"
#include "rank_counts.h"

#include <penstock/pipe/pipe.h>

#include <optional>
#include <string>
#include <vector>

namespace penstock::tool {

//! Where an exported model is cut.
struct CutOptions {
  std::vector<std::string> split;
  std::vector<std::string> cuts;
  std::optional<std::int64_t> stages;
  BalanceBy by = BalanceBy::Parameters;

  void declare(Arguments& arguments);
  //! Nothing if no option says where.
  std::optional<SplitSpec> spec() const;
};

//! Over what it runs.
struct RankOptions {
  RankRequest asked;
  std::optional<std::int64_t> stages_per_rank, microbatches;
  std::string schedule;
  std::string backend = "auto";
  DeviceChoice device = DeviceChoice::Auto;

  void declare(Arguments& arguments, const std::string& usual_schedule);
  //! UsageError where the options disagree or cannot be.
  RankCounts counts() const;
};

}  // namespace penstock::tool
