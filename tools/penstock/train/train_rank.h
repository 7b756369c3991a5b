// One rank of `penstock train`.
#pragma once

#include "config/train_settings.h"

namespace penstock::tool {

//! Joins the world, trains, and reports progress on rank 0. Returns the exit code.
int run_training_rank(const TrainSettings& request);

}  // namespace penstock::tool
