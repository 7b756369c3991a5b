// The differentiable moves between plain and distributed tensors and between placements.
#pragma once

#include "tensor/impl.h"

#include <c10/util/intrusive_ptr.h>

namespace torch::autograd {
struct Node;
}

namespace penstock {

//! The same values in other places. With `remember`, later calls with the same target get the same tensor.
at::Tensor redistributed(const at::Tensor& tensor, const Placements& to, bool remember);

at::Tensor local_to_distributed(const at::Tensor& local, const MeshPtr& mesh, const Placements& placements,
                                c10::IntArrayRef sizes);

at::Tensor distributed_to_local(const at::Tensor& tensor, const Placements& grad_placements);

//! A gradient on the mesh. One that an operator made from plain tensors is the same on every rank.
at::Tensor gradient_on(const at::Tensor& grad, const MeshPtr& mesh);

//! Whether an operator on this tensor is to be recorded.
bool needs_gradient(const at::Tensor& source);

//! The result of an operator on `source` alone, with that operator's node.
at::Tensor with_history(at::Tensor result, const at::Tensor& source,
                        const c10::intrusive_ptr<torch::autograd::Node>& node);

//! `result`, the values of `source`, with a node that brings the gradient to the placements of `source`.
at::Tensor with_gradient_placed(const at::Tensor& result, const at::Tensor& source);

//! Where the gradient of a tensor with these placements is brought: partial sums are needed whole.
Placements gradient_placements(const Placements& placements);

}  // namespace penstock
