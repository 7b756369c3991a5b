// Lookups in a table whose rows are cut. libtorch's derivative of a lookup makes the gradient of the whole
// table; here each rank adds up the gradients of its own rows alone.
#pragma once

#include "tensor/impl.h"

namespace penstock {

//! Of a table of which this rank has the rows `mine`: what it has, and zeros for the rest. Plain tensors.
at::Tensor embed_rows(const at::Tensor& rows, const at::Tensor& indices, const Interval& mine);

//! embedding(weight, indices) of distributed tensors: on each axis the weight's rows, its features or the
//! indices are cut, or nothing is.
at::Tensor look_up(const at::Tensor& weight, const at::Tensor& indices, std::int64_t padding,
                   bool by_frequency);

}  // namespace penstock
