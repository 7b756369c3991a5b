// Conversion between distributed tensors and plain tensors with metadata.
#include "tensor/dispatch/autograd.h"

#include <penstock/tensor/flatten.h>

namespace penstock::tensor {

FlatDTensor flatten_dtensor(const at::Tensor& tensor) {
  const DTensorImpl* impl = tensor.defined() ? impl_of(tensor) : nullptr;
  if (!impl) return {tensor, std::nullopt};
  at::Tensor local = impl->local().detach();
  local.set_requires_grad(tensor.requires_grad());
  return {local, DTensorSpec{Access::mesh(impl->mesh_ptr()), impl->placements(), tensor.sizes().vec()}};
}

at::Tensor unflatten_dtensor(const at::Tensor& local, const DTensorSpec& spec) {
  return from_local(local, spec.mesh, spec.placements, spec.sizes);
}

at::Tensor synced_gradient(const at::Tensor& grad) {
  const DTensorImpl* impl = grad.defined() ? impl_of(grad) : nullptr;
  return impl ? impl->local() : grad;
}

}  // namespace penstock::tensor
