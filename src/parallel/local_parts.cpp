// Between parts and distributed tensors, without gradients.
#include "parallel/local_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace penstock {

at::Tensor local_gradient(const at::Tensor& parameter, const std::optional<DTensorForm>& form) {
  const at::Tensor& grad = parameter.grad();
  if (!grad.defined() || !form) return grad;
  const at::NoGradGuard no_grad;
  // A plain gradient is the same on every rank.
  const at::Tensor whole =
      is_dtensor(grad) ? grad : from_local(grad, form->mesh, Placements(form->placements.size()));
  return local_of(redistribute(whole, form->placements));
}

at::Tensor with_form(const at::Tensor& part, const std::optional<DTensorForm>& form) {
  if (!form) return part;
  const at::NoGradGuard no_grad;
  return unflatten_dtensor(part, *form);
}

at::Tensor empty_of(const at::TensorOptions& options, const std::optional<DTensorForm>& form) {
  at::Tensor nothing = at::empty({0}, options);
  if (!form) return nothing;
  const at::NoGradGuard no_grad;
  return from_local(nothing, form->mesh, Placements(form->placements.size()));
}

}  // namespace penstock
