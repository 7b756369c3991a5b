// The norm of all gradients of a pipeline: each rank's part, combined over the group.
#include "runtime/step_result.h"

#include <penstock/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock {
namespace {

// Each tensor once: stages of one rank may share them.
std::vector<at::Tensor> gradients(const PipelineSetup& setup, const SharedParameters* without) {
  std::vector<at::Tensor> parameters;
  for (const PipelineStage& stage : setup.stages) {
    for (const NamedTensor& item : stage.module().parameters()) {
      const auto same = [&](const at::Tensor& other) { return other.is_same(item.tensor); };
      if (!item.tensor.grad().defined() || std::any_of(parameters.begin(), parameters.end(), same)) continue;
      if (without == nullptr || !without->counted_elsewhere(item.tensor)) parameters.push_back(item.tensor);
    }
  }
  for (at::Tensor& parameter : parameters) parameter = parameter.grad();
  return parameters;
}

}  // namespace

double clip_over_stages(const PipelineSetup& setup, const SharedParameters& shared, double max_norm,
                        double norm_type) {
  if (!(max_norm > 0) || !(norm_type > 0))
    throw UsageError("the norm to clip to, and its order, must be positive");
  const at::NoGradGuard no_grad;
  const bool largest = std::isinf(norm_type);
  double part = 0;
  for (const at::Tensor& grad : gradients(setup, &shared)) {
    const double norm =
        at::linalg_vector_norm(grad, norm_type, std::nullopt, false, at::kDouble).item<double>();
    part = largest ? std::max(part, norm) : part + std::pow(norm, norm_type);
  }
  if (setup.options.data_parallel) part = setup.options.data_parallel->combine_norm(part, largest);
  const at::Tensor sum = at::full({1}, part, at::kDouble);
  if (setup.group.size() > 1) setup.group.all_reduce(sum, largest ? ReduceOp::Max : ReduceOp::Sum);
  const double total = largest ? sum.item<double>() : std::pow(sum.item<double>(), 1 / norm_type);
  const double scale = max_norm / (total + 1e-6);  // the reference's guard against 0
  if (scale < 1 || std::isnan(scale)) {
    for (at::Tensor& grad : gradients(setup, nullptr)) grad.mul_(scale);
  }
  return total;
}

}  // namespace penstock
