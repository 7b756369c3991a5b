// The differentiable moves between plain and distributed tensors and between placements.
#pragma once

#include "tensor/impl.h"

namespace penstock {

//! The same values in other places. With `remember`, later calls with the same target get the same tensor.
at::Tensor redistributed(const at::Tensor& tensor, const Placements& to, bool remember);

at::Tensor local_to_distributed(const at::Tensor& local, const MeshPtr& mesh, const Placements& placements,
                                c10::IntArrayRef sizes);

at::Tensor distributed_to_local(const at::Tensor& tensor, const Placements& grad_placements);

//! Where the gradient of a tensor with these placements is brought: partial sums are needed whole.
Placements gradient_placements(const Placements& placements);

}  // namespace penstock
