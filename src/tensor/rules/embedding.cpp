// Embedding lookup and its backward pass: both are linear, and the backward pass of each is the other. The
// rules are in index.cpp.
#include "tensor/rules/embedding.h"

#include "tensor/dispatch/autograd.h"

#include <penstock/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

namespace penstock::tensor {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

//! The arguments of a lookup other than the tensor in which it is linear.
struct Lookup {
  at::Tensor indices;
  std::int64_t padding = -1;
  bool by_frequency = false;
  Placements weight, out, grad;  //!< of the table, the result, and the gradient of the table
  Sizes weight_sizes;
  MeshPtr mesh;

  Interval rows() const { return interval_of(weight_sizes[0], 0, weight, *mesh); }
  const at::Tensor& local_indices() const { return impl_of(indices)->local(); }
};
using LookupPtr = std::shared_ptr<const Lookup>;

at::Tensor within(const at::Tensor& indices, const Interval& range) {
  return indices.ge(range.start) & indices.lt(range.start + range.size);
}

at::Tensor look_up_rows(const at::Tensor& weight, const LookupPtr& lookup);

//! The gradient of this rank's rows: sums the incoming gradients of each index.
at::Tensor add_up_rows(const at::Tensor& grad, const Lookup& lookup) {
  const Interval range = lookup.rows();
  if (range.size == 0) return grad.new_zeros({0, grad.size(-1)});
  const at::Tensor indices = lookup.local_indices().reshape({-1});
  const at::Tensor inside = within(indices, range);
  const at::Tensor rows = grad.reshape({indices.numel(), grad.size(-1)});
  const std::int64_t padding = lookup.padding - range.start;
  const bool pads = lookup.padding >= 0 && padding >= 0 && padding < range.size;
  const std::int64_t ignored = pads ? padding : -1;
  if (!indices.is_cpu()) {
    // Indices of other ranks go to an additional row. To select those of this rank, the host would have to
    // wait.
    const at::Tensor local = at::where(inside, indices - range.start, range.size);
    return at::embedding_dense_backward(rows, local, range.size + 1, ignored, lookup.by_frequency)
        .narrow(0, 0, range.size);
  }
  const at::Tensor positions = inside.nonzero().squeeze(1);
  return at::embedding_dense_backward(rows.index_select(0, positions),
                                      indices.index_select(0, positions) - range.start, range.size, ignored,
                                      lookup.by_frequency);
}

struct AddUpBackward : Node {
  LookupPtr lookup;

  std::string name() const override { return "AddUpRowsBackward"; }
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    if (lookup->by_frequency) {
      throw UsageError("an embedding with scale_grad_by_freq has no second derivative",
                       {.op = "aten::embedding"});
    }
    const at::Tensor result = look_up_rows(redistributed(grads[0], lookup->weight, false), lookup);
    if (lookup->padding < 0) return {result};
    return {result * lookup->indices.ne(lookup->padding).unsqueeze(-1)};
  }
};

at::Tensor add_up(const at::Tensor& grad, const LookupPtr& lookup) {
  const at::Tensor here = redistributed(grad, gradient_placements(lookup->out), false);
  at::Tensor result;
  {
    const c10::AutoGradMode off(false);
    result =
        wrap(add_up_rows(impl_of(here)->local(), *lookup), lookup->mesh, lookup->grad, lookup->weight_sizes);
  }
  if (!needs_gradient(here)) return result;
  auto node = c10::make_intrusive<AddUpBackward>();
  node->lookup = lookup;
  return with_history(result, here, node);
}

struct LookUpBackward : Node {
  LookupPtr lookup;

  std::string name() const override { return "LookUpRowsBackward"; }
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    return {add_up(gradient_on(grads[0], lookup->mesh), lookup)};
  }
};

at::Tensor look_up_rows(const at::Tensor& weight, const LookupPtr& lookup) {
  at::Tensor result;
  {
    const c10::AutoGradMode off(false);
    Sizes sizes(lookup->indices.sizes().begin(), lookup->indices.sizes().end());
    sizes.push_back(weight.size(1));
    result = wrap(embed_rows(impl_of(weight)->local(), lookup->local_indices(), lookup->rows()), lookup->mesh,
                  lookup->out, sizes);
  }
  if (!needs_gradient(weight)) return result;
  auto node = c10::make_intrusive<LookUpBackward>();
  node->lookup = lookup;
  return with_history(result, weight, node);
}

}  // namespace

at::Tensor embed_rows(const at::Tensor& rows, const at::Tensor& indices, const Interval& range) {
  if (range.size == 0) {
    std::vector<std::int64_t> sizes = indices.sizes().vec();
    sizes.push_back(rows.size(1));
    return rows.new_zeros(sizes);
  }
  const at::Tensor inside = within(indices, range);
  const at::Tensor local = at::where(inside, indices - range.start, at::zeros_like(indices));
  return at::embedding(rows, local) * inside.unsqueeze(-1).to(rows.scalar_type());
}

at::Tensor look_up(const at::Tensor& weight, const at::Tensor& indices, std::int64_t padding,
                   bool by_frequency) {
  const DTensorImpl& table = *impl_of(weight);
  auto lookup = std::make_shared<Lookup>();
  lookup->indices = indices;
  lookup->padding = padding;
  lookup->by_frequency = by_frequency;
  lookup->weight = lookup->grad = table.placements();
  lookup->out = impl_of(indices)->placements();
  lookup->weight_sizes = Sizes(weight.sizes().begin(), weight.sizes().end());
  lookup->mesh = table.mesh_ptr();
  for (std::size_t axis = 0; axis < lookup->weight.size(); ++axis) {
    if (lookup->weight[axis].is_shard(0)) {
      lookup->out[axis] = Partial();
    } else if (lookup->weight[axis].is_shard()) {
      lookup->out[axis] = Shard(indices.dim());
    } else if (lookup->out[axis].is_shard()) {
      lookup->grad[axis] = Partial();
    }
  }
  return look_up_rows(weight, lookup);
}

}  // namespace penstock::tensor
