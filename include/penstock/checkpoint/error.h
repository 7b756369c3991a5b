// Errors in files and checkpoints.
#pragma once

#include <penstock/base/error.h>

namespace penstock::checkpoint {

//! A read or write failed: no space, no permission, a removed directory. `code()` is the errno.
class StorageError : public Error {
 public:
  StorageError(const std::string& message, int code);

  int code() const { return code_; }

 private:
  int code_;
};

//! A checkpoint is incomplete, damaged, or lacks requested tensors. The message lists every problem.
class CheckpointError : public Error {
  using Error::Error;
};

}  // namespace penstock::checkpoint
