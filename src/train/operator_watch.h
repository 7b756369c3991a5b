// Finds the operator in which a value that is not finite comes into a computation, whatever runs the
// operators: an exported graph or C++ modules.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::train {

//! Watches the operators that this thread calls while it lives.
class OperatorWatch {
 public:
  //! For the first operator that reads one of `suspects`; without suspects, for the first that gives NaN.
  explicit OperatorWatch(std::vector<at::Tensor> suspects);
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  //! `aten::linear of module layers.0`, where the module is known; empty if there was none.
  const std::string& first() const { return first_; }

 private:
  struct Callbacks;

  std::vector<at::Tensor> suspects_;
  std::string first_;
  int depth_ = 0;
  std::uint64_t handle_ = 0;
};

}  // namespace penstock::train
