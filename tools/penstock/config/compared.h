// The schedules that one call of `simulate` compares: names with their own stages per rank, files, `all`, and
// several counts of microbatches.
#pragma once

#include "config/source.h"

#include <string>
#include <vector>

namespace penstock::tool {

//! One schedule to simulate.
struct ComparedSchedule {
  std::string name_or_file;
  ShapeOptions shape;          //!< with the stages per rank and the microbatches of this schedule
  bool only_if_valid = false;  //!< from `all`: left out if it does not support the counts or the costs
};

//! Expands `names` for all `microbatches` (empty: not given). `Interleaved1F1B:2` sets the stages per rank of
//! one schedule. `all` is every schedule that has a backward pass. A file appears once, because it has its
//! own microbatches.
std::vector<ComparedSchedule> compared_schedules(const std::vector<std::string>& names,
                                                 const std::vector<std::int64_t>& microbatches,
                                                 const ShapeOptions& shape);

//! Parses the values of `--microbatches`. Throws UsageError.
std::vector<std::int64_t> microbatch_counts(const std::vector<std::string>& texts);

//! The costs of microbatches that are `ratio` times as large.
CostFile resized(CostFile file, double ratio);

}  // namespace penstock::tool
