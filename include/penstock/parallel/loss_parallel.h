// Cross entropy on logits whose classes are cut over the ranks.
#pragma once

namespace penstock {

//! Log-softmax and cross entropy keep classes that are cut where they are wherever that is cheaper, with or
//! without this. While it lives, on its thread, they never gather them, and logits whose classes are not cut
//! are a UsageError.
class LossParallel {
 public:
  LossParallel();
  ~LossParallel();
  LossParallel(const LossParallel&) = delete;
  LossParallel& operator=(const LossParallel&) = delete;

 private:
  bool outer_;
};

}  // namespace penstock
