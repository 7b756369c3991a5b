// The error of code that the pipeline runs for its user.
#pragma once

#include <penstock/base/error.h>

namespace penstock {

//! A module, a loss, a hook or libtorch threw while an action ran. The context says which action; the
//! original is the nested exception (std::rethrow_if_nested).
class StageError : public Error {
  using Error::Error;
};

}  // namespace penstock
