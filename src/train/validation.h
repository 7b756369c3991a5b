// The loss over the validation rows: each row once, whatever the batch size and the topology.
#pragma once

#include "train/assembly.h"

#include <penstock/train/data.h>

namespace penstock::train {

//! The loss as `validation_loss` needs it in the pipeline: of a microbatch that is filled up with rows that
//! do not count, it is the loss of the others.
LossFunction over_rows_that_count(LossFunction loss);

//! The mean of the losses over the rows, by what the model's reduction weighs them with; nothing where no row
//! has weight, for example because all labels are ignored. Every rank must call it; all get the same.
std::optional<double> validation_loss(const Mesh& mesh, const Assembly& assembly, const Model& model,
                                      const DataSource& data, const RunOptions& options);

}  // namespace penstock::train
