// The errors of files and checkpoints, on top of the family in base.
#pragma once

#include <penstock/base/error.h>

namespace penstock {

//! The system refused to read or write: no space, no permission, a directory that is gone. `code()` is errno.
class StorageError : public Error {
 public:
  StorageError(const std::string& message, int code);

  int code() const { return code_; }

 private:
  int code_;
};

//! A checkpoint that is incomplete or damaged, or does not hold what was asked for; the message lists
//! everything that is wrong.
class CheckpointError : public Error {
  using Error::Error;
};

}  // namespace penstock
