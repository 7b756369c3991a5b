// What can be known of a training run before its ranks start: by one process, without communication.
#pragma once

#include <penstock/train/model.h>
#include <penstock/train/options.h>

namespace penstock::train {

//! Checks the options, the schedule, the number of stages and of tensor-parallel ranks against the model, the
//! rows of microbatches, and the checkpoint directory: whether it can be written, holds another run's
//! checkpoints, and, to resume, one whose tensors are the model's. Splits the model; loads no weights and
//! writes nothing. UsageError says what to change. The elements of a checkpoint are verified by the ranks.
void check_before_start(Model& model, const RunOptions& options);

}  // namespace penstock::train
