// Costs of microbatches of another size, to compare several counts of microbatches for one batch.
#pragma once

#include <penstock/plan/costs.h>

namespace penstock::plan {

//! Scales the costs to a microbatch that is `ratio` times as large. Everything except the overhead scales
//! with the size. Throws UsageError if the bytes overflow.
StageCosts resize(StageCosts costs, double ratio, double overhead);

}  // namespace penstock::plan
