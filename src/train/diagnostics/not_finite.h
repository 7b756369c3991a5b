// Finds the origin of a loss or gradient that is not finite.
#pragma once

#include "train/model/assembly.h"

#include <penstock/base/error.h>
#include <penstock/train/data.h>
#include <penstock/train/trainer.h>

namespace penstock::train {

//! Runs the forward pass of the batch again with instrumented stages. Returns an error that names the first
//! value that is not finite (data, parameter, output or loss) with its microbatch, stage and operator, or
//! says that the backward pass produced it. Collective; all ranks return the same error.
Error find_not_finite(const tensor::DeviceMesh& mesh, const Assembly& assembly, const DataSource& data,
                      const RunOptions& options, const StepRecord& record);

}  // namespace penstock::train
