// Public functions on distributed tensors.
#include "tensor/dispatch/autograd.h"
#include "tensor/layout/redistribute.h"
#include "tensor/rules/random_draws.h"

#include <penstock/base/error.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/Formatting.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <sstream>

namespace penstock::tensor {
namespace {

DTensorImpl& required(const at::Tensor& tensor, const char* call) {
  DTensorImpl* const impl = tensor.defined() ? impl_of(tensor) : nullptr;
  if (impl) return *impl;
  throw UsageError(std::string(call) + " needs a distributed tensor", {},
                   "create one with distribute_tensor or from_local");
}

void check_sizes(const at::Tensor& local, c10::IntArrayRef sizes, const Placements& placements,
                 const DeviceMesh::Impl& mesh) {
  const Sizes want = local_sizes(sizes, placements, mesh);
  if (c10::IntArrayRef(want) == local.sizes()) return;
  std::ostringstream text;
  text << "the local shard has sizes " << local.sizes() << ", but a tensor of " << sizes
       << " with placements " << penstock::tensor::to_string(placements) << " needs "
       << c10::IntArrayRef(want);
  throw ShapeError(text.str(), {},
                   "shards are split as by torch.chunk; pass the global sizes if they are uneven");
}

at::Tensor constructed(c10::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements,
                       at::TensorOptions options,
                       const std::function<void(at::Tensor&, const Placements&)>& fill) {
  const Placements at = checked(placements, static_cast<std::int64_t>(sizes.size()), *Access::impl(mesh));
  const c10::AutoGradMode off(false);
  at::Tensor local = at::empty(local_sizes(sizes, at, *Access::impl(mesh)), options);
  fill(local, at);
  return wrap(local, Access::impl(mesh), at, sizes);
}

}  // namespace

at::Tensor distribute_tensor(const at::Tensor& full, const DeviceMesh& mesh, Placements placements,
                             bool broadcast) {
  const MeshPtr& state = Access::impl(mesh);
  if (impl_of(full)) {
    throw UsageError("distribute_tensor got a tensor that is already distributed", {}, "call redistribute");
  }
  const Placements to = checked(std::move(placements), full.dim(), *state);
  const c10::AutoGradMode off(false);
  at::Tensor source = full.detach().resolve_conj().resolve_neg().contiguous();
  if (broadcast && !source.is_meta()) {  // meta tensors have no elements to send
    source = source.clone();
    for (std::size_t axis = 0; axis < state->groups.size(); ++axis) {
      if (state->shape[axis] > 1) state->groups[axis].broadcast(source, 0);
    }
  }
  LocalShard shard =
      move(LocalShard{source, nullptr}, full.sizes(), state, Placements(to.size(), tensor::Replicate()), to);
  at::Tensor result = wrap(shard.get(), state, to, full.sizes());
  result.set_requires_grad(full.requires_grad());
  return result;
}

at::Tensor distribute_parameter(const at::Tensor& full, const DeviceMesh& mesh, Placements placements,
                                bool broadcast) {
  at::Tensor result = distribute_tensor(full, mesh, std::move(placements), broadcast);
  DTensorImpl* const impl = impl_of(result);
  impl->pinned = true;
  if (result.requires_grad()) {
    result.register_hook([to = impl->placements()](const at::Tensor& grad) {
      return impl_of(grad) ? redistributed(grad, to, false) : grad;
    });
  }
  return result;
}

at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh, Placements placements,
                      std::optional<std::vector<std::int64_t>> sizes) {
  if (impl_of(local)) throw UsageError("from_local got a tensor that is already distributed");
  const Placements at = checked(std::move(placements), local.dim(), *Access::impl(mesh));
  if (sizes) {
    check_sizes(local, *sizes, at, *Access::impl(mesh));
    return local_to_distributed(local, Access::impl(mesh), at, *sizes);
  }
  Sizes even(local.sizes().begin(), local.sizes().end());
  for (std::size_t axis = 0; axis < at.size(); ++axis) {
    if (at[axis].is_shard()) even[static_cast<std::size_t>(at[axis].dim())] *= mesh.shape()[axis];
  }
  return local_to_distributed(local, Access::impl(mesh), at, even);
}

at::Tensor to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  const DTensorImpl& impl = required(tensor, "to_local");
  const Placements grad = grad_placements ? checked(std::move(*grad_placements), tensor.dim(), impl.mesh())
                                          : gradient_placements(impl.placements());
  return distributed_to_local(tensor, grad);
}

at::Tensor full_tensor(const at::Tensor& tensor) {
  const DTensorImpl& impl = required(tensor, "full_tensor");
  const Placements replicated(impl.placements().size(), tensor::Replicate());
  return distributed_to_local(redistributed(tensor, replicated, false), replicated);
}

at::Tensor redistribute(const at::Tensor& tensor, Placements placements) {
  const DTensorImpl& impl = required(tensor, "redistribute");
  const Placements to = checked(std::move(placements), tensor.dim(), impl.mesh());
  // The forward pass does nothing, but the backward pass must reduce a partial gradient.
  if (to == impl.placements() && needs_gradient(tensor))
    return with_gradient_placements(tensor.detach(), tensor);
  return redistributed(tensor, to, false);
}

bool is_dtensor(const at::Tensor& tensor) {
  return tensor.defined() && impl_of(tensor) != nullptr;
}
DeviceMesh mesh_of(const at::Tensor& tensor) {
  return Access::mesh(required(tensor, "mesh_of").mesh_ptr());
}
const Placements& placements_of(const at::Tensor& tensor) {
  return required(tensor, "placements_of").placements();
}
const at::Tensor& local_of(const at::Tensor& tensor) {
  return required(tensor, "local_of").local();
}

std::string to_string(const at::Tensor& tensor) {
  const DTensorImpl& impl = required(tensor, "describe");
  std::ostringstream text;
  text << "DTensor(" << tensor.sizes() << ", " << c10::toString(tensor.scalar_type()) << ", "
       << to_string(Access::mesh(impl.mesh_ptr())) << ", " << penstock::tensor::to_string(impl.placements())
       << ")\n"
       << impl.local();
  return text.str();
}

at::Tensor distributed_full(c10::IntArrayRef sizes, double value, const DeviceMesh& mesh,
                            Placements placements, at::ScalarType dtype, at::Device device) {
  return constructed(sizes, mesh, placements, at::device(device).dtype(dtype),
                     [&](at::Tensor& local, const Placements& at) {
                       local.fill_(value);
                       for (std::size_t axis = 0; axis < at.size(); ++axis) {
                         // The contribution of the first rank is the value.
                         const bool sum = at[axis].is_partial() && at[axis].reduce() == comm::ReduceOp::Sum;
                         if (sum && Access::impl(mesh)->coordinate[axis] != 0) local.zero_();
                       }
                     });
}

at::Tensor distributed_zeros(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                             at::ScalarType dtype, at::Device device) {
  return distributed_full(sizes, 0, mesh, std::move(placements), dtype, device);
}

at::Tensor distributed_ones(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                            at::ScalarType dtype, at::Device device) {
  return distributed_full(sizes, 1, mesh, std::move(placements), dtype, device);
}

at::Tensor distributed_rand(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                            at::ScalarType dtype, at::Device device) {
  return constructed(
      sizes, mesh, placements, at::device(device).dtype(dtype), [&](at::Tensor& local, const Placements& at) {
        fill_random(local, sizes, at, *Access::impl(mesh), next_key(*Access::impl(mesh)), Uniform{0, 1});
      });
}

at::Tensor distributed_randn(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                             at::ScalarType dtype, at::Device device) {
  return constructed(
      sizes, mesh, placements, at::device(device).dtype(dtype), [&](at::Tensor& local, const Placements& at) {
        fill_random(local, sizes, at, *Access::impl(mesh), next_key(*Access::impl(mesh)), Normal{0, 1});
      });
}

}  // namespace penstock::tensor
