// The norm of all gradients of a pipeline: each rank's share, combined over all ranks.
#include "runtime/step/step_result.h"
#include "tensor/norm_sum.h"

#include <penstock/tensor/grad_norm.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>

namespace penstock::runtime {
namespace {

// Returns each tensor once: stages of one rank may share parameters.
std::vector<at::Tensor> parameters_of(const PipelineSetup& setup, const SharedParameters* without) {
  std::vector<at::Tensor> parameters;
  for (const PipelineStage& stage : setup.stages) {
    for (const value::NamedTensor& item : stage.module().parameters()) {
      const auto same = [&](const at::Tensor& other) { return other.is_same(item.tensor); };
      if (!item.tensor.requires_grad() || std::any_of(parameters.begin(), parameters.end(), same)) continue;
      if (without == nullptr || !without->counted_elsewhere(item.tensor)) parameters.push_back(item.tensor);
    }
  }
  return parameters;
}

}  // namespace

double clip_over_stages(const PipelineSetup& setup, const SharedParameters& shared, double max_norm,
                        double norm_type) {
  const at::NoGradGuard no_grad;
  DataParallel* const data_parallel = setup.options.data_parallel.get();
  tensor::GradNorm norm(norm_type);
  for (const at::Tensor& parameter : parameters_of(setup, &shared)) {
    const std::vector<comm::Group> groups =
        data_parallel != nullptr ? data_parallel->sharding_groups_of(parameter) : std::vector<comm::Group>();
    if (groups.empty()) {
      norm.add(parameter);
    } else {
      norm.add(parameter.grad(), groups);
    }
  }
  double part = norm.reduce();
  if (data_parallel != nullptr) part = data_parallel->combine_norm(part, norm.reduce_op());
  const at::Tensor sum = at::full({1}, part, at::kDouble);
  if (setup.group.size() > 1) setup.group.all_reduce(sum, norm.reduce_op());
  const double total = norm.norm_of(sum.item<double>());
  const double scale = tensor::clip_scale(total, max_norm);
  if (scale == 1) return total;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_of(setup, nullptr)) gradients.push_back(parameter.grad());
  tensor::scale_gradients(gradients, scale);
  return total;
}

}  // namespace penstock::runtime
