// One rank of `penstock train`.
#pragma once

#include "config/train_settings.h"
#include "train/display/train_display.h"

#include <penstock/comm/world.h>

namespace penstock::tool {

//! Joins the world, trains, and reports progress on rank 0. Returns the exit code.
int run_training_rank(const TrainSettings& request);

//! The two parts of `run_training_rank`.
comm::World join_world(const TrainSettings& request);
void train_in(const comm::World& world, const TrainSettings& request, DisplayOptions display);

}  // namespace penstock::tool
