// Uses libtorch's fused kernels: one call for all parameters, with the arithmetic of Python's torch.optim.
#include "train/loop/optimizer.h"

#include "train/model/tensor_parallel_stage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <numbers>

namespace penstock::train {

Optimizer::Optimizer(std::vector<value::NamedTensor> parameters, const OptimizerOptions& options)
    : options_(options), parameters_(std::move(parameters)) {
  const at::NoGradGuard no_grad;
  const bool adam = options_.kind == OptimizerKind::AdamW;
  const bool one = adam || options_.momentum > 0;
  for (const value::NamedTensor& item : parameters_) {
    if (one) first_.push_back(at::zeros_like(local_shard(item.tensor), at::MemoryFormat::Preserve));
    if (adam) second_.push_back(at::zeros_like(local_shard(item.tensor), at::MemoryFormat::Preserve));
    counts_.push_back(at::full({}, 0.0, local_shard(item.tensor).options().dtype(at::kFloat)));
  }
}

void Optimizer::zero_grad() {
  for (value::NamedTensor& item : parameters_) item.tensor.mutable_grad() = at::Tensor();
}

void Optimizer::scale_gradients(double factor) {
  const at::NoGradGuard no_grad;
  for (value::NamedTensor& item : parameters_)
    if (item.tensor.grad().defined()) item.tensor.mutable_grad().mul_(factor);
}

void Optimizer::step(double rate) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values, grads, first, second, counts;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].tensor.grad().defined()) continue;
    const at::Tensor value = local_shard(parameters_[i].tensor);
    at::Tensor grad = local_shard(parameters_[i].tensor.grad());
    if (grad.strides() != value.strides()) grad = at::zeros_like(value).copy_(grad);
    values.push_back(value);
    grads.push_back(grad);
    if (!first_.empty()) first.push_back(first_[i]);
    if (!second_.empty()) second.push_back(second_[i]);
    counts.push_back(counts_[i]);
  }
  if (values.empty()) return;
  at::_foreach_add_(counts, 1);
  switch (options_.kind) {
    case OptimizerKind::AdamW:
      at::_fused_adamw_(values, grads, first, second, {}, counts, rate, options_.beta1, options_.beta2,
                        options_.weight_decay, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
      return;
    case OptimizerKind::Sgd:
      at::_fused_sgd_(values, grads, first, options_.weight_decay, options_.momentum, rate, /*dampening=*/0,
                      /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
      return;
  }
}

std::vector<Optimizer::State> Optimizer::states() const {
  const auto named = [&](std::string kind, const std::vector<at::Tensor>& tensors) {
    State state{std::move(kind), {}};
    for (std::size_t i = 0; i < tensors.size(); ++i)
      state.tensors.push_back({parameters_[i].name, tensors[i]});
    return state;
  };
  if (!second_.empty())
    return {named("exp_avg", first_), named("exp_avg_sq", second_), named("step", counts_)};
  if (!first_.empty()) return {named("momentum_buffer", first_)};
  return {};
}

double rate_at(const LearningRateOptions& options, std::int64_t step, std::int64_t steps) {
  if (step <= options.warmup)
    return options.peak * static_cast<double>(step) / static_cast<double>(options.warmup);
  switch (options.kind) {
    case LearningRateKind::Constant:
      return options.peak;
    case LearningRateKind::Cosine: {
      const double total = static_cast<double>(std::max<std::int64_t>(steps - options.warmup, 1));
      const double done = std::min(1.0, static_cast<double>(step - options.warmup) / total);
      const double shape = 0.5 * (1 + std::cos(std::numbers::pi * done));
      return options.peak * (options.final_fraction + (1 - options.final_fraction) * shape);
    }
  }
  return options.peak;
}

}  // namespace penstock::train
