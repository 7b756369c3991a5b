// Sets the mode of the loss rules.
#include "tensor/rules/loss_mode.h"

#include <penstock/parallel/loss_parallel.h>

namespace penstock::parallel {

LossParallel::LossParallel() : outer_(tensor::loss_stays_sharded()) {
  tensor::loss_stays_sharded() = true;
}
LossParallel::~LossParallel() {
  tensor::loss_stays_sharded() = outer_;
}

}  // namespace penstock::parallel
