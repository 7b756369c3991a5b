// The error for failures in user code that the pipeline runs.
#pragma once

#include <penstock/base/error.h>

namespace penstock::runtime {

//! A module, a loss, a hook or libtorch threw while an action ran. The context names the action; the original
//! exception is nested (std::rethrow_if_nested).
class StageError : public Error {
  using Error::Error;
};

}  // namespace penstock::runtime
