// Where a loss or gradient that is not finite came from.
#pragma once

#include "train/assembly.h"

#include <penstock/base/error.h>
#include <penstock/train/data.h>

namespace penstock::train {

//! Runs the batch forward again with every stage watched, and makes the error that names the microbatch and
//! stage whose output was the first that is not finite, or says that the backward made it. Every rank must
//! call it; all get the same error.
Error find_not_finite(const Mesh& mesh, const Assembly& assembly, const Batch& batch, double loss,
                      double grad_norm);

}  // namespace penstock::train
