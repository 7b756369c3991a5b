// From what a rank was given of the batch to its microbatches.
#pragma once

#include "runtime/step_state.h"

#include <penstock/runtime/step.h>

#include <cstdint>
#include <vector>

namespace penstock {

struct CutBatch {
  StepBatch batch;                        //!< without seeds
  std::vector<std::int64_t> rows;         //!< of the first stage's microbatches; zeros elsewhere
  std::vector<std::uint64_t> signatures;  //!< of what this rank has of each microbatch
  //! Which rows the microbatches take (value/chunk_rules.h); 0: unknown, 1: as they stand.
  std::int64_t row_order = 0;
};

//! UsageError for what is missing or has no taker; ShapeError for what cannot be split.
CutBatch cut_batch(const PipelineSetup& setup, const StepInput& input, bool train);
//! The same for a batch that the caller has split; UsageError for a list with another number of microbatches.
CutBatch cut_batch(const PipelineSetup& setup, const Microbatches& input, bool train);

}  // namespace penstock
