// Whether this thread insists on classes staying cut (parallel/loss_parallel.h).
#pragma once

namespace penstock {

bool& loss_stays_cut();

}  // namespace penstock
