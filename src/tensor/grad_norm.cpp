// Norms of gradients, reduced over ranks.
#include "tensor/norm_sum.h"

#include <penstock/base/error.h>
#include <penstock/tensor/grad_norm.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>

namespace penstock::tensor {

std::vector<comm::Group> sharding_groups(const DeviceMesh& mesh, const Placements& placements) {
  std::vector<comm::Group> groups;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const comm::Group& group = mesh.group(static_cast<int>(axis));
    if (placements[axis].is_shard() && group.size() > 1) groups.push_back(group);
  }
  return groups;
}

GradNorm::GradNorm(double norm_type) : norm_type_(norm_type) {
  if (!(norm_type > 0)) throw UsageError("the order of the norm must be positive");
}

void GradNorm::add(const at::Tensor& parameter) {
  const at::Tensor& grad = parameter.grad();
  if (!is_dtensor(parameter)) {
    // The gradient of a plain parameter is distributed if operators computed it from distributed tensors.
    if (!is_dtensor(grad)) return add(grad, {});
    return add(local_of(redistribute(grad, Placements(placements_of(grad).size()))), {});
  }
  if (grad.defined() && !is_dtensor(grad)) return add(grad, {});
  const Placements& placements = placements_of(parameter);
  add(grad.defined() ? local_of(redistribute(grad, placements)) : grad,
      sharding_groups(mesh_of(parameter), placements));
}

void GradNorm::add(const at::Tensor& grad, const std::vector<comm::Group>& groups) {
  const auto same = [&](const GroupSum& entry) {
    return std::equal(entry.groups.begin(), entry.groups.end(), groups.begin(), groups.end(),
                      [](const comm::Group& a, const comm::Group& b) { return a == b; });
  };
  auto entry = std::find_if(sums_.begin(), sums_.end(), same);
  if (entry == sums_.end()) entry = sums_.insert(entry, {groups});
  if (!grad.defined() || grad.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const auto norm = at::linalg_vector_norm(grad, norm_type_, std::nullopt, false, at::kDouble).item<double>();
  // A maximum that propagates NaN.
  entry->sum = !is_max() ? entry->sum + std::pow(norm, norm_type_) : (norm <= entry->sum ? entry->sum : norm);
}

double GradNorm::reduce() const {
  double all = 0;
  for (const GroupSum& entry : sums_) {
    const at::Tensor sum = at::full({1}, entry.sum, at::kDouble);
    for (const comm::Group& group : entry.groups) group.all_reduce(sum, reduce_op());
    const auto value = sum.item<double>();
    all = !is_max() ? all + value : (value <= all ? all : value);
  }
  return all;
}

bool GradNorm::is_max() const {
  return std::isinf(norm_type_);
}

comm::ReduceOp GradNorm::reduce_op() const {
  return is_max() ? comm::ReduceOp::Max : comm::ReduceOp::Sum;
}

double GradNorm::norm_of(double sum) const {
  return is_max() ? sum : std::pow(sum, 1 / norm_type_);
}

double clip_scale(double norm, double max_norm) {
  if (!(max_norm > 0)) throw UsageError("max_norm must be positive");
  const double scale = max_norm / (norm + 1e-6);  // 1e-6 as in torch.nn.utils.clip_grad_norm_
  return scale < 1 || std::isnan(scale) ? scale : 1;
}

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  GradNorm norm(norm_type);
  for (const at::Tensor& parameter : parameters) norm.add(parameter);
  const double total = norm.norm_of(norm.reduce());
  const double scale = clip_scale(total, max_norm);
  if (scale == 1) return total;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) parameter.grad().mul_(scale);
  }
  return total;
}

}  // namespace penstock::tensor
