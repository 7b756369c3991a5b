// Errors in checkpoints.
#pragma once

#include <penstock/base/error.h>

namespace penstock::checkpoint {

using penstock::StorageError;

//! A checkpoint is incomplete, damaged, or lacks requested tensors. The message lists every problem.
class CheckpointError : public Error {
  using Error::Error;
};

}  // namespace penstock::checkpoint
