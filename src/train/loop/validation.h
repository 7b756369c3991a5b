// The loss over the validation rows. Each row counts once, for any batch size and topology.
#pragma once

#include "train/model/assembly.h"

#include <penstock/train/data.h>

namespace penstock::train {

//! Returns the mean loss over the validation rows, weighted by the reduction of the model; nullopt if no row
//! has weight, for example because all labels are ignored. Collective; all ranks return the same value.
std::optional<double> validation_loss(const tensor::DeviceMesh& mesh, const Assembly& assembly,
                                      const Model& model, const DataSource& data, const RunOptions& options);

}  // namespace penstock::train
