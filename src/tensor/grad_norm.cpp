// Norms of gradients, reduced over ranks.
#include "tensor/norm_sum.h"

#include <penstock/base/error.h>
#include <penstock/tensor/grad_norm.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <map>

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
  if (!grad.is_cpu()) return entry->on_devices.push_back(grad);
  const auto norm = at::linalg_vector_norm(grad, norm_type_, std::nullopt, false, at::kDouble).item<double>();
  entry->sum = combined(entry->sum, is_max() ? norm : std::pow(norm, norm_type_));
}

// A maximum propagates NaN.
double GradNorm::combined(double a, double b) const {
  return !is_max() ? a + b : (b <= a ? a : b);
}

// The sums of all groups come from a device in one copy.
std::vector<double> GradNorm::local_sums() const {
  std::vector<double> sums;
  std::vector<at::Tensor> parts;
  std::vector<std::size_t> part_of;
  for (const GroupSum& entry : sums_) {
    sums.push_back(entry.sum);
    if (entry.on_devices.empty()) continue;
    const c10::Device device = entry.on_devices.front().device();
    std::vector<at::Tensor> norms = at::_foreach_norm(entry.on_devices, norm_type_, at::kDouble);
    for (at::Tensor& norm : norms) norm = norm.to(device);  // a rank may have stages on several devices
    const at::Tensor all = at::stack(norms);
    parts.push_back(
        (is_max() ? all.amax() : all.pow(norm_type_).sum()).to(parts.empty() ? device : parts[0].device()));
    part_of.push_back(sums.size() - 1);
  }
  if (parts.empty()) return sums;
  const at::Tensor values = at::stack(parts).cpu();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    double& sum = sums[part_of[i]];
    sum = combined(sum, values.const_data_ptr<double>()[i]);
  }
  return sums;
}

double GradNorm::reduce() const {
  const at::NoGradGuard no_grad;
  const std::vector<double> local = local_sums();
  double all = 0;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const at::Tensor sum = at::full({1}, local[i], at::kDouble);
    for (const comm::Group& group : sums_[i].groups) group.all_reduce(sum, reduce_op());
    all = combined(all, sum.item<double>());
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

void scale_gradients(const std::vector<at::Tensor>& gradients, double scale) {
  std::map<std::pair<c10::DeviceIndex, c10::ScalarType>, std::vector<at::Tensor>> on_devices;
  for (const at::Tensor& grad : gradients) {
    if (!grad.defined()) continue;
    if (grad.is_cpu() || is_dtensor(grad)) {
      grad.mul_(scale);
    } else {
      on_devices[{grad.device().index(), grad.scalar_type()}].push_back(grad);
    }
  }
  for (const auto& [key, tensors] : on_devices) at::_foreach_mul_(tensors, scale);
}

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  GradNorm norm(norm_type);
  for (const at::Tensor& parameter : parameters) norm.add(parameter);
  const double total = norm.norm_of(norm.reduce());
  const double scale = clip_scale(total, max_norm);
  if (scale == 1) return total;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  scale_gradients(gradients, scale);
  return total;
}

}  // namespace penstock::tensor
