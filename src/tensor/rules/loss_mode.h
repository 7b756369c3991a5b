// Whether LossParallel forbids gathering sharded classes (parallel/loss_parallel.h).
#pragma once

#include <memory>

namespace penstock::tensor {

bool loss_stays_sharded();
//! Forbids it on this thread, and in the backward passes that it starts, while the result lives.
std::shared_ptr<void> keep_loss_sharded();

}  // namespace penstock::tensor
