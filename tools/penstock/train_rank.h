// What one rank of `penstock train` does.
#pragma once

#include "train_settings.h"

namespace penstock::tool {

//! Joins the others, trains, and on rank 0 shows how it goes.
int be_a_training_rank(const TrainSettings& asked);

}  // namespace penstock::tool
