// A switch of the loss's rules.
#include "tensor/loss_mode.h"

#include <penstock/parallel/loss_parallel.h>

namespace penstock {

LossParallel::LossParallel() : outer_(loss_stays_cut()) {
  loss_stays_cut() = true;
}
LossParallel::~LossParallel() {
  loss_stays_cut() = outer_;
}

}  // namespace penstock
