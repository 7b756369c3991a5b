// Cross entropy on logits that are sharded along the class dim.
#pragma once

namespace penstock::parallel {

//! Log-softmax and cross entropy keep sharded classes sharded whenever that is cheaper. During the lifetime
//! of this object, on its thread, they never gather classes and throw UsageError for logits that are not
//! sharded along the class dim.
class LossParallel {
 public:
  LossParallel();
  ~LossParallel();
  LossParallel(const LossParallel&) = delete;
  LossParallel& operator=(const LossParallel&) = delete;

 private:
  bool outer_;
};

}  // namespace penstock::parallel
