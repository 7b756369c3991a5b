// The error of a training run.
#pragma once

#include <penstock/base/error.h>

#include <cstdint>
#include <string>

namespace penstock::train {

//! A step of a run failed. The message starts with the step; the original error, such as a PeerFailed, is
//! nested (std::rethrow_if_nested).
class RunError : public Error {
 public:
  RunError(std::int64_t step, const Error& cause)
      : Error("step " + std::to_string(step) + ": " + cause.message(), cause.context(), cause.hint()),
        step_(step) {}

  std::int64_t step() const { return step_; }

 private:
  std::int64_t step_;
};

}  // namespace penstock::train
