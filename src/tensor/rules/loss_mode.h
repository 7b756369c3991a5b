// Whether LossParallel forbids gathering sharded classes on this thread (parallel/loss_parallel.h).
#pragma once

namespace penstock::tensor {

bool& loss_stays_sharded();

}  // namespace penstock::tensor
