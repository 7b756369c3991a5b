// The report of `penstock train --dry-run`.
#pragma once

#include "config/train_settings.h"

#include <penstock/comm/launched_rank.h>

#include <string>

namespace penstock::tool {

//! Says what would run where, with the predicted memory and time, as text or as one JSON object. Requires a
//! request that `check_training` has accepted. Throws UsageError if the output directories cannot be used.
//! Starts no ranks and writes no files; measures the speed of this machine for about 50 ms.
std::string dry_run_report(const TrainSettings& request, const comm::LaunchedRank& found, bool json);

}  // namespace penstock::tool
