// One rank of `penstock train`.
#pragma once

#include "config/train_settings.h"
#include "train/display/train_display.h"
#include "train/rank/stop_signal.h"

#include <penstock/comm/world.h>

namespace penstock::tool {

//! Joins the world, trains, and reports progress on rank 0. Returns the exit code.
int run_training_rank(const TrainSettings& request);

//! The two parts of `run_training_rank`.
comm::World join_world(const TrainSettings& request);
//! Returns the number of the signal that stopped the run, or 0.
int train_in(const comm::World& world, const TrainSettings& request, DisplayOptions display,
             StopSignals::Which signals);

}  // namespace penstock::tool
