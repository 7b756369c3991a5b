// Conversion between local shards and distributed tensors, without autograd.
#include "parallel/tensor/local_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace penstock::parallel {

at::Tensor local_gradient(const at::Tensor& parameter, const std::optional<tensor::DTensorSpec>& form) {
  const at::Tensor& grad = parameter.grad();
  if (!grad.defined() || !form) return grad;
  const at::NoGradGuard no_grad;
  // A plain gradient is equal on every rank.
  const at::Tensor whole = tensor::is_dtensor(grad)
                               ? grad
                               : from_local(grad, form->mesh, tensor::Placements(form->placements.size()));
  return tensor::local_of(redistribute(whole, form->placements));
}

at::Tensor with_form(const at::Tensor& part, const std::optional<tensor::DTensorSpec>& form) {
  if (!form) return part;
  const at::NoGradGuard no_grad;
  return unflatten_dtensor(part, *form);
}

at::Tensor empty_of(const at::TensorOptions& options, const std::optional<tensor::DTensorSpec>& form) {
  at::Tensor nothing = at::empty({0}, options);
  if (!form) return nothing;
  const at::NoGradGuard no_grad;
  return from_local(nothing, form->mesh, tensor::Placements(form->placements.size()));
}

}  // namespace penstock::parallel
