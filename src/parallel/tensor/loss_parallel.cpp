// Sets the mode of the loss rules.
#include "tensor/rules/loss_mode.h"

#include <penstock/parallel/loss_parallel.h>

namespace penstock::parallel {

LossParallel::LossParallel() : mode_(tensor::keep_loss_sharded()) {}
LossParallel::~LossParallel() = default;

}  // namespace penstock::parallel
