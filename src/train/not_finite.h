// Where a loss or gradient that is not finite came from.
#pragma once

#include "train/assembly.h"

#include <penstock/base/error.h>
#include <penstock/train/data.h>
#include <penstock/train/trainer.h>

namespace penstock::train {

//! Runs the step's batch forward again with every stage watched, and makes the error that names the first
//! value that is not finite: a tensor of the data, a parameter, an output or the loss, with its microbatch,
//! stage and operator; or says that the backward made it. Every rank must call it; all get the same error.
Error find_not_finite(const Mesh& mesh, const Assembly& assembly, const DataSource& data,
                      const RunOptions& options, const StepRecord& record);

}  // namespace penstock::train
