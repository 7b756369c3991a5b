// Finds the operator in which a value that is not finite enters a computation, for exported graphs and C++
// modules.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::train {

//! Observes the operators that this thread calls during the lifetime of the object.
class OperatorObserver {
 public:
  //! Looks for the first operator that reads one of `suspects`; if empty, for the first that returns NaN.
  explicit OperatorObserver(std::vector<at::Tensor> suspects);
  ~OperatorObserver();
  OperatorObserver(const OperatorObserver&) = delete;
  OperatorObserver& operator=(const OperatorObserver&) = delete;

  //! `aten::linear of module layers.0` if the module is known; empty if no operator was found.
  const std::string& first() const { return first_; }

 private:
  struct Callbacks;

  std::vector<at::Tensor> suspects_;
  std::string first_;
  int depth_ = 0;
  std::uint64_t handle_ = 0;
};

}  // namespace penstock::train
