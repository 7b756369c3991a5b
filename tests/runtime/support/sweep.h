// The sweep over schedules, ranks, stages per rank, microbatches and models, divided into the cases that
// every `./dev test` runs and the rest.
#pragma once

#include "support/dense_comparison.h"

#include <utility>
#include <vector>

namespace penstock::test {

using Batches = std::vector<std::pair<int, int>>;  //!< microbatches and rows

//! Even and uneven splits, and fewer microbatches than stages.
Batches sweep_batches(int ranks);

//! Every schedule with a backward x 1, 2 and 3 stages per rank x the batches, if the schedule supports them.
//! (The schedule tests check that unsupported counts are rejected.)
std::vector<Case> sweep_cases(int ranks, const Batches& batches);

constexpr std::uint64_t kSweepSeed = 42;
constexpr int kSweepSteps = 3;

//! The dense run for these counts; cached, because several schedules need the same one.
const DenseRun& sweep_dense(const PipelineModel& model, int stages, const Case& test);

}  // namespace penstock::test
