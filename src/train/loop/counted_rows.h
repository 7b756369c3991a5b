// Batches with padding rows. Every pass through the pipeline has the same number of rows; at the end of the
// training or validation rows, some of them are copies that do not count.
#pragma once

#include <penstock/runtime/loss_function.h>
#include <penstock/runtime/loss_reduction.h>
#include <penstock/train/data.h>
#include <penstock/train/options.h>

#include <cstdint>

namespace penstock::train {

//! The rows of one pass of a replica through the pipeline.
struct PassBatch {
  Batch batch;            //!< `batch.examples` is the number of rows that count; they come first
  std::int64_t rows = 0;  //!< all rows

  //! The target for the pipeline, which marks the rows that count.
  c10::IValue target() const;
};

//! Returns the rows of a training batch for part `part` of a replica.
PassBatch training_pass(const DataSource& data, const RunOptions& options, std::int64_t step, int replica,
                        std::int64_t part);
//! Returns validation rows, padded to `size` rows, for a pass of this many microbatches.
PassBatch validation_pass(const DataSource& data, Rows rows, std::int64_t size, int microbatches);

//! Wraps the loss of a model for the targets of passes: leaves out the padding rows.
runtime::LossFunction loss_of_counted(runtime::LossFunction loss);
//! Wraps the reduction of a model for the targets of passes: a microbatch has the weight of its rows that
//! count.
runtime::LossReduction reduction_of_counted(runtime::LossReduction reduction);

}  // namespace penstock::train
