// Distributed tensors as values of a batch.
#pragma once

namespace penstock {

//! Lets `split_args_kwargs_into_chunks`, `merge_chunks` and `TensorMeta` know distributed tensors.
void register_tensor_values();

}  // namespace penstock
