// `penstock train` as a rank of another launcher: `penstock run`, torchrun, srun or mpirun.
#pragma once

#include "config/train_settings.h"
#include "train/display/train_display.h"

#include <penstock/comm/launched_rank.h>

#include <functional>
#include <string>

namespace penstock::tool {

//! Throws UsageError if the request needs another number of ranks than the launcher started.
void check_size(const TrainSettings& request, const comm::LaunchedRank& found);

//! Joins the world, checks the request on every rank and trains. Only one rank prints an error that several
//! ranks have, and rank 0 prints everything else. `config` returns the resolved configuration, once the
//! request has been checked. Returns the exit code.
int run_external_rank(TrainSettings& request, const comm::LaunchedRank& found, const DisplayOptions& display,
                      const std::function<std::string()>& config);

}  // namespace penstock::tool
