// Conversion between local shards and distributed tensors, without autograd.
#include "parallel/tensor/local_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace penstock::parallel {

at::Tensor local_gradient(const at::Tensor& parameter, const std::optional<tensor::DTensorSpec>& spec) {
  const at::Tensor& grad = parameter.grad();
  if (!grad.defined() || !spec) return grad;
  const at::NoGradGuard no_grad;
  // A plain gradient is equal on every rank.
  const at::Tensor dtensor = tensor::is_dtensor(grad)
                                 ? grad
                                 : from_local(grad, spec->mesh, tensor::Placements(spec->placements.size()));
  return tensor::local_of(redistribute(dtensor, spec->placements));
}

at::Tensor with_spec(const at::Tensor& part, const std::optional<tensor::DTensorSpec>& spec) {
  if (!spec) return part;
  const at::NoGradGuard no_grad;
  return unflatten_dtensor(part, *spec);
}

at::Tensor empty_of(const at::TensorOptions& options, const std::optional<tensor::DTensorSpec>& spec) {
  at::Tensor nothing = at::empty({0}, options);
  if (!spec) return nothing;
  const at::NoGradGuard no_grad;
  return from_local(nothing, spec->mesh, tensor::Placements(spec->placements.size()));
}

}  // namespace penstock::parallel
