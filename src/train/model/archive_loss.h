// The losses of exported models, and what they and the loss of the GPT average over.
#pragma once

#include <penstock/runtime/loss_function.h>
#include <penstock/runtime/loss_reduction.h>
#include <penstock/train/model.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace penstock::train {

//! Converts bfloat16 and float16, which have too few digits for a loss, to float32.
at::Tensor in_float32(const at::Tensor& tensor);

//! The loss of one microbatch. `leaf` is the index of the tensor in the output that the loss reads.
runtime::LossFunction archive_loss(std::size_t leaf, LossKind kind, const LossOptions& options);

//! Cross entropy averages over valid labels, weighted by class; the other losses and those of soft targets
//! average over elements, of which all rows have the same number.
runtime::LossReduction archive_reduction(LossKind kind, const LossOptions& options);

//! Throws UsageError if an option is invalid or does not apply to the loss. `classes` is the number of
//! classes of the output, if it is known.
void check_loss_options(LossKind kind, const LossOptions& options, std::optional<std::int64_t> classes);

}  // namespace penstock::train
