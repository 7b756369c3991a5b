// The weights of the microbatch losses.
#include "base/number_text.h"
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/runtime/loss_reduction.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/Tensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace penstock::runtime {
namespace {

void check_weight(double weight, std::size_t microbatch) {
  if (std::isfinite(weight) && weight >= 0) return;
  ErrorContext context;
  context.microbatch = MicrobatchId(static_cast<std::int64_t>(microbatch));
  throw UsageError(str_cat("the weight of a loss is ", decimal_text(weight)), context,
                   "weights must be finite and not negative");
}

std::vector<double> normalize_weights(std::vector<double> weights, std::optional<double> denominator) {
  for (std::size_t i = 0; i < weights.size(); ++i) check_weight(weights[i], i);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double total = denominator.value_or(sum);
  if (!std::isfinite(total) || total < 0 || (total == 0 && sum > 0)) {
    throw UsageError(str_cat("the weights of the losses sum to ", decimal_text(sum),
                             " and cannot be divided by ", decimal_text(total)),
                     {}, "set loss_denominator to the mean of these sums over all shares of the batch");
  }
  for (double& weight : weights) weight = total == 0 ? 0 : weight / total;
  return weights;
}

// Whether the targets are plain tensors on one device other than the CPU.
bool on_one_device(const std::vector<c10::IValue>& targets) {
  return std::all_of(targets.begin(), targets.end(), [&](const c10::IValue& target) {
    return target.isTensor() && !target.toTensor().is_cpu() && !tensor::is_dtensor(target.toTensor()) &&
           targets[0].isTensor() && target.toTensor().device() == targets[0].toTensor().device();
  });
}

// Counts the labels of all targets with one wait for the device.
std::vector<double> count_labels(const std::vector<c10::IValue>& targets, std::int64_t ignored) {
  std::vector<at::Tensor> counts;
  for (const c10::IValue& target : targets) counts.push_back(target.toTensor().ne(ignored).sum());
  const at::Tensor all = at::stack(counts).to(at::kDouble).cpu();
  const double* const first = all.const_data_ptr<double>();
  return {first, first + all.numel()};
}

// The weighted sum of numbers on the CPU, rounded as by operators: the products are stored before they are
// summed, so that the compiler cannot fuse the two operations.
template <class Number>
at::Tensor reduce_numbers(const std::vector<at::Tensor>& losses, const std::vector<double>& factors) {
  std::vector<Number> parts;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (factors[i] != 0)
      parts.push_back(*losses[i].const_data_ptr<Number>() * static_cast<Number>(factors[i]));
  }
  at::Tensor total = at::zeros_like(losses[0].detach());
  if (!parts.empty())
    *total.mutable_data_ptr<Number>() = std::accumulate(parts.begin() + 1, parts.end(), parts.front());
  return total;
}

bool are_numbers(const std::vector<at::Tensor>& losses, at::ScalarType type) {
  return std::all_of(losses.begin(), losses.end(), [&](const at::Tensor& loss) {
    return loss.is_cpu() && !tensor::is_dtensor(loss) && loss.scalar_type() == type && loss.dim() == 0 &&
           loss.layout() == at::kStrided && !loss.is_neg();
  });
}

}  // namespace

LossReduction LossReduction::mean_over_valid_labels(std::int64_t ignored) {
  const auto weight = [ignored](const c10::IValue& target) {
    if (!target.isTensor()) {
      throw UsageError("a mean over valid labels needs a target that is a single tensor", {},
                       "use LossReduction::weighted to count the labels of other targets");
    }
    return target.toTensor().ne(ignored).sum().item<double>();
  };
  return LossReduction(Weighted{weight, ignored});
}

std::optional<double> LossReduction::weight_of(const c10::IValue& target) const {
  const auto* const rule = std::get_if<Weighted>(&rule_);
  return rule != nullptr ? std::optional(rule->weight(target)) : std::nullopt;
}

std::vector<double> LossReduction::initial_gradients(const std::vector<std::int64_t>& rows,
                                                     const std::vector<c10::IValue>& targets,
                                                     std::optional<double> denominator) const {
  if (std::holds_alternative<Sum>(rule_))
    return std::vector<double>(std::max(rows.size(), targets.size()), 1.0);
  if (std::holds_alternative<Mean>(rule_)) {
    if (rows.empty()) throw UsageError("a mean of losses needs the number of rows of each microbatch");
    return normalize_weights({rows.begin(), rows.end()}, denominator);
  }
  if (targets.empty() || (!rows.empty() && rows.size() != targets.size())) {
    throw UsageError(str_cat("weighted losses need a target for each microbatch: ", targets.size(),
                             " targets, ", rows.size(), " microbatches"));
  }
  const Weighted& rule = std::get<Weighted>(rule_);
  std::vector<double> weights;
  weights.reserve(targets.size());
  if (rule.ignored_label && on_one_device(targets)) {
    weights = count_labels(targets, *rule.ignored_label);
  } else {
    for (const c10::IValue& target : targets) weights.push_back(rule.weight(target));
  }
  return normalize_weights(std::move(weights), denominator);
}

at::Tensor LossReduction::reduce(const std::vector<at::Tensor>& losses, const std::vector<double>& factors) {
  if (losses.empty() || losses.size() != factors.size()) {
    throw UsageError(str_cat(losses.size(), " losses cannot be reduced with ", factors.size(), " factors"));
  }
  if (are_numbers(losses, at::kFloat)) return reduce_numbers<float>(losses, factors);
  if (are_numbers(losses, at::kDouble)) return reduce_numbers<double>(losses, factors);
  at::Tensor total;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (factors[i] == 0) continue;  // 0 x NaN is NaN
    const at::Tensor part = losses[i].detach() * factors[i];
    total = total.defined() ? total + part : part;
  }
  return total.defined() ? total : at::zeros_like(losses[0].detach());
}

}  // namespace penstock::runtime
