// Differentiable conversion between plain and distributed tensors, and redistribution.
#pragma once

#include "tensor/dispatch/dtensor_impl.h"

#include <c10/util/intrusive_ptr.h>

namespace torch::autograd {
struct Node;
}

namespace penstock::tensor {

//! Redistributes a tensor. With `remember`, later calls with the same placements return the same tensor.
at::Tensor redistributed(const at::Tensor& tensor, const Placements& to, bool remember);

at::Tensor local_to_distributed(const at::Tensor& local, const MeshPtr& mesh, const Placements& placements,
                                c10::IntArrayRef sizes);

at::Tensor distributed_to_local(const at::Tensor& tensor, const Placements& grad_placements);

//! Converts a gradient to the mesh. A plain gradient, made from plain tensors, counts as replicated.
at::Tensor gradient_on(const at::Tensor& grad, const MeshPtr& mesh);

//! Whether autograd records operators on this tensor.
bool needs_gradient(const at::Tensor& source);

//! Attaches the node of an operator with the single input `source` to its result.
at::Tensor with_history(at::Tensor result, const at::Tensor& source,
                        const c10::intrusive_ptr<torch::autograd::Node>& node);

//! Attaches a node to `result` (the values of `source`) that returns the gradient in the placements of
//! `source`.
at::Tensor with_gradient_placements(const at::Tensor& result, const at::Tensor& source);

//! The placements of the gradient of a tensor: partial becomes replicated.
Placements gradient_placements(const Placements& placements);

}  // namespace penstock::tensor
