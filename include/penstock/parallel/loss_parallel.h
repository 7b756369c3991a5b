// Cross entropy on logits that are sharded along the class dim.
#pragma once

#include <memory>

namespace penstock::parallel {

//! Log-softmax and cross entropy keep sharded classes sharded whenever that is cheaper. During the lifetime
//! of this object, on its thread and in the backward passes that it starts, they never gather classes and
//! throw UsageError for logits that are not sharded along the class dim. Objects must end in reverse order.
class LossParallel {
 public:
  LossParallel();
  ~LossParallel();
  LossParallel(const LossParallel&) = delete;
  LossParallel& operator=(const LossParallel&) = delete;

 private:
  std::shared_ptr<void> mode_;
};

}  // namespace penstock::parallel
