// Backward nodes. A distributed tensor represents its global value, and redistribution does not change it.
// The gradient is therefore the same global value, redistributed to the placements of the input.
#include "tensor/dispatch/autograd.h"

#include "tensor/layout/redistribute.h"

#include <penstock/base/error.h>

#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

namespace penstock::tensor {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

struct RedistributeBackward : Node {
  Placements to;
  MeshPtr mesh;

  std::string name() const override { return "RedistributeBackward"; }
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    return {redistributed(gradient_on(grads[0], mesh), to, false)};
  }
};

struct FromLocalBackward : Node {
  Placements placements;
  double scale = 1;  //!< for an average, the contribution of a rank counts 1 / ranks

  std::string name() const override { return "FromLocalBackward"; }
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    if (!impl_of(grads[0])) return {scale == 1 ? grads[0] : grads[0] * scale};
    const Placements to = gradient_placements(placements);
    const at::Tensor local = distributed_to_local(redistributed(grads[0], to, false), to);
    return {scale == 1 ? local : local * scale};
  }
};

struct ToLocalBackward : Node {
  Placements placements;
  MeshPtr mesh;
  Sizes sizes;

  std::string name() const override { return "ToLocalBackward"; }
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    return {local_to_distributed(grads[0], mesh, placements, sizes)};
  }
};

}  // namespace

at::Tensor gradient_on(const at::Tensor& grad, const MeshPtr& mesh) {
  if (impl_of(grad)) return grad;
  return local_to_distributed(grad, mesh, Placements(mesh->shape.size(), tensor::Replicate()), grad.sizes());
}

bool needs_gradient(const at::Tensor& source) {
  return c10::GradMode::is_enabled() && source.requires_grad();
}

at::Tensor with_history(at::Tensor result, const at::Tensor& source, const c10::intrusive_ptr<Node>& node) {
  node->set_next_edges(torch::autograd::collect_next_edges(source));
  torch::autograd::set_history(result, node);
  return result;
}

Placements gradient_placements(const Placements& placements) {
  Placements result = placements;
  for (AxisPlacement& placement : result) {
    if (placement.is_partial()) placement = tensor::Replicate();
  }
  return result;
}

at::Tensor with_gradient_placements(const at::Tensor& result, const at::Tensor& source) {
  const DTensorImpl* const impl = impl_of(source);
  auto node = c10::make_intrusive<RedistributeBackward>();
  node->to = gradient_placements(impl->placements());
  node->mesh = impl->mesh_ptr();
  return with_history(result, source, node);
}

at::Tensor redistributed(const at::Tensor& tensor, const Placements& to, bool remember) {
  DTensorImpl* const impl = impl_of(tensor);
  if (impl->placements() == to) return tensor;
  const bool grad = needs_gradient(tensor);
  // A parameter must not hold its copies: they hold its gradient accumulator, which holds the parameter (a
  // cycle).
  remember = remember && !impl->is_inference() && !(tensor.requires_grad() && tensor.is_leaf());
  if (remember && impl->memo && impl->memo->placements == to && impl->memo->version == tensor._version() &&
      impl->memo->tensor.requires_grad() == grad) {
    return impl->memo->tensor;
  }
  at::Tensor result;
  {
    const c10::AutoGradMode off(false);
    LocalShard shard =
        move(LocalShard{impl->local(), nullptr}, tensor.sizes(), impl->mesh_ptr(), impl->placements(), to);
    result = wrap(std::move(shard), impl->mesh_ptr(), to, tensor.scalar_type(), tensor.device(),
                  tensor.sizes(), tensor.strides());
  }
  if (grad) result = with_gradient_placements(result, tensor);
  if (remember) {
    impl->memo = std::make_unique<DTensorImpl::Memo>(
        DTensorImpl::Memo{to, result, static_cast<std::uint32_t>(tensor._version())});
  }
  return result;
}

at::Tensor local_to_distributed(const at::Tensor& local, const MeshPtr& mesh, const Placements& placements,
                                c10::IntArrayRef sizes) {
  at::Tensor result = wrap(local.detach(), mesh, placements, sizes);
  if (!needs_gradient(local)) return result;
  auto node = c10::make_intrusive<FromLocalBackward>();
  node->placements = placements;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    if (placements[i].is_partial() && placements[i].reduce() == comm::ReduceOp::Avg) {
      node->scale /= static_cast<double>(mesh->shape[i]);
    }
  }
  return with_history(result, local, node);
}

at::Tensor distributed_to_local(const at::Tensor& tensor, const Placements& grad_placements) {
  const DTensorImpl* const impl = impl_of(tensor);
  if (!needs_gradient(tensor)) return impl->local();
  auto node = c10::make_intrusive<ToLocalBackward>();
  node->placements = grad_placements;
  node->mesh = impl->mesh_ptr();
  node->sizes = Sizes(tensor.sizes().begin(), tensor.sizes().end());
  // An alias, so that history is not set on the local shard itself.
  return with_history(impl->local().detach(), tensor, node);
}

}  // namespace penstock::tensor
