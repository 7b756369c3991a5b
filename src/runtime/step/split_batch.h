// Splits the values that a rank was given into microbatches.
#pragma once

#include "runtime/step/step_state.h"
#include "value/row_order.h"

#include <penstock/runtime/step.h>

#include <cstdint>
#include <vector>

namespace penstock::runtime {

struct SplitBatch {
  StepBatch batch;                        //!< initial gradients not set
  std::vector<std::int64_t> rows;         //!< of the first stage's microbatches; zeros elsewhere
  std::vector<std::uint64_t> signatures;  //!< of this rank's values of each microbatch
  value::RowOrder row_order;              //!< of this rank's values; empty if it splits none
};

//! The batch of this rank, as the caller passes it to a step.
struct UnsplitBatch : StepOptions {
  value::Args args;
  c10::IValue target;
};

//! Throws UsageError if values are missing or no stage takes them, ShapeError if values cannot be split.
SplitBatch split_batch(const PipelineSetup& setup, const UnsplitBatch& input, bool train);
//! Overload for a batch that is already split. Throws UsageError if a list has the wrong length.
SplitBatch split_batch(const PipelineSetup& setup, const Microbatches& input, bool train);

}  // namespace penstock::runtime
