// Seeds of the microbatches' backward passes.
#include <penstock/base/error.h>
#include <penstock/value/loss_reduction.h>

#include <ATen/Tensor.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <numeric>

namespace penstock {
namespace {

std::vector<double> shares(std::vector<double> weights) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (std::isfinite(weights[i]) && weights[i] >= 0) continue;
    ErrorContext context;
    context.microbatch = MicrobatchId(static_cast<std::int64_t>(i));
    throw UsageError("the weight of a loss is " + std::to_string(weights[i]), context,
                     "weights are 0 or more");
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (total == 0) throw UsageError("the weights of all losses are 0: the batch has nothing to learn from");
  for (double& weight : weights) weight /= total;
  return weights;
}

}  // namespace

std::vector<double> LossReduction::seeds(const std::vector<std::int64_t>& rows,
                                         const std::vector<c10::IValue>& targets) const {
  if (std::holds_alternative<Sum>(rule_))
    return std::vector<double>(std::max(rows.size(), targets.size()), 1.0);
  if (std::holds_alternative<Mean>(rule_)) {
    if (rows.empty()) throw UsageError("a mean of losses needs the rows of each microbatch");
    return shares({rows.begin(), rows.end()});
  }
  if (targets.empty() || (!rows.empty() && rows.size() != targets.size())) {
    throw UsageError("weighted losses need a target for each microbatch: " + std::to_string(targets.size()) +
                     " targets, " + std::to_string(rows.size()) + " microbatches");
  }
  std::vector<double> weights;
  weights.reserve(targets.size());
  for (const c10::IValue& target : targets) weights.push_back(std::get<Weighted>(rule_).weight(target));
  return shares(std::move(weights));
}

at::Tensor LossReduction::reduce(const std::vector<at::Tensor>& losses, const std::vector<double>& seeds) {
  if (losses.empty() || losses.size() != seeds.size()) {
    throw UsageError(std::to_string(losses.size()) + " losses cannot be reduced with " +
                     std::to_string(seeds.size()) + " seeds");
  }
  at::Tensor total = losses[0].detach() * seeds[0];
  for (std::size_t i = 1; i < losses.size(); ++i) total = total + losses[i].detach() * seeds[i];
  return total;
}

}  // namespace penstock
