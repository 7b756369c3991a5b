// Weights with other names or dtypes than those of the checkpoint that they come from.
#pragma once

#include <penstock/checkpoint/convert.h>
#include <penstock/checkpoint/rename.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace penstock::tool {

//! The dtype in which `checkpoint convert` writes floating-point tensors.
enum class WeightDtype { Stored, Bfloat16, Float16, Float32 };

//! Parses the rules of `--rename`: `FROM=TO`.
std::vector<checkpoint::RenameRule> read_renames(const std::vector<std::string>& entries);

//! The parameters and buffers of a checkpoint.
checkpoint::ComputedWeights weights_of(const std::shared_ptr<const checkpoint::Checkpoint>& checkpoint);

//! The same weights with names that the rules make. Throws UsageError if a rule matches no name, or if two
//! tensors get the same one.
checkpoint::ComputedWeights with_names(const checkpoint::ComputedWeights& weights,
                                       const std::vector<checkpoint::RenameRule>& rules);

//! The same weights, of which those of floating-point dtypes are converted. Reading one throws UsageError if
//! a finite element becomes infinite.
checkpoint::ComputedWeights with_dtype(const checkpoint::ComputedWeights& weights, WeightDtype dtype);

}  // namespace penstock::tool
