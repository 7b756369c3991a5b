// Checks of a training run before its ranks start: in one process, without communication.
#pragma once

#include <penstock/train/model.h>
#include <penstock/train/options.h>

namespace penstock::train {

//! Checks the options, the schedule, the numbers of stages and tensor-parallel ranks, the rows of
//! microbatches and the checkpoint directory: it must be writable and must not contain checkpoints of another
//! run; to resume, the tensors of its newest checkpoint must match the model. Splits the model, but loads no
//! weights and writes nothing. Throws UsageError. Does not verify the elements of a checkpoint: the ranks do.
void check_before_start(Model& model, const RunOptions& options);

}  // namespace penstock::train
