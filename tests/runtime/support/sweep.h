// The sweep over schedules, ranks, stages a rank, microbatches and models, cut into the part that every
// `./dev test` runs and the rest.
#pragma once

#include "runtime/support/dense_comparison.h"

#include <utility>
#include <vector>

namespace penstock::test {

using Batches = std::vector<std::pair<int, int>>;  //!< microbatches and rows

//! Even, uneven, and fewer microbatches than stages.
Batches sweep_batches(int ranks);

//! Every schedule with backward x 1, 2 and 3 stages a rank x the batches, as far as the schedule is defined
//! for them. (What it is not defined for must be refused, which the schedules' tests check.)
std::vector<Case> sweep_cases(int ranks, const Batches& batches);

constexpr std::uint64_t kSweepSeed = 42;
constexpr int kSweepSteps = 3;

//! The dense run of these counts; kept, since several schedules ask for the same.
const DenseRun& sweep_dense(const PipelineModel& model, int stages, const Case& test);

}  // namespace penstock::test
