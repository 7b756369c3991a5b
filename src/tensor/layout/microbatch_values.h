// Splitting and merging distributed tensors as values of a batch.
#pragma once

namespace penstock::tensor {

//! Registers distributed tensors with `split_args_kwargs_into_chunks`, `merge_chunks` and `TensorMeta`.
void register_tensor_values();

}  // namespace penstock::tensor
