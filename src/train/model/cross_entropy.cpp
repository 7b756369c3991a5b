// Calls libtorch's cross entropy, or computes its formula on shards of the classes.
#include "train/model/cross_entropy.h"

#include <penstock/parallel/loss_parallel.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/functional/loss.h>

namespace penstock::train {
namespace {

// With the weight w of each class, the target class t of each valid row, and C classes, the loss is
//   (1 - smoothing) * sum of -w[t] log p[t] / sum of w[t] + smoothing / C * sum of -w log p / sum of w[t]
// with sums over the valid rows and, in the last term, all classes.
at::Tensor sharded_cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                                 const at::Tensor& weights, double smoothing) {
  const parallel::LossParallel keep;  // logits stay sharded
  const auto weight = weights.defined() ? std::optional(weights) : std::nullopt;
  const at::Tensor log_probabilities = at::log_softmax(logits, 1);
  const at::Tensor loss = tensor::full_tensor(at::nll_loss(log_probabilities, labels, weight));
  if (smoothing == 0) return loss;
  const at::Tensor weighted = weights.defined() ? log_probabilities * weights : log_probabilities;
  const at::Tensor sums = tensor::full_tensor(weighted.sum(1)), valid = labels.ne(kIgnoredLabel);
  const at::Tensor total = weights.defined()
                               ? (weights.index_select(0, labels.masked_fill(~valid, 0)) * valid).sum()
                               : valid.sum();
  const at::Tensor uniform = (sums * valid).sum() / (total * -logits.size(1));
  return loss * (1 - smoothing) + uniform * smoothing;
}

}  // namespace

ClassWeights::ClassWeights(const LossOptions& options)
    : on_host_(options.class_weights.empty() ? at::Tensor() : at::tensor(options.class_weights, at::kFloat)) {
}

at::Tensor ClassWeights::on(c10::Device device) const {
  if (!on_host_.defined() || device.is_cpu()) return on_host_;
  const std::lock_guard lock(*mutex_);
  at::Tensor& copy = (*copies_)[device.str()];
  if (!copy.defined()) copy = on_host_.to(device);
  return copy;
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& weights,
                         double smoothing) {
  const at::Tensor rows = logits.to(at::kFloat).flatten(0, -2);
  if (tensor::is_dtensor(logits)) return sharded_cross_entropy(rows, target.flatten(), weights, smoothing);
  torch::nn::functional::CrossEntropyFuncOptions options;
  if (weights.defined()) options.weight(weights);
  options.label_smoothing(smoothing);
  const at::Tensor expected =
      target.is_floating_point() ? target.to(at::kFloat).flatten(0, -2) : target.flatten();
  return torch::nn::functional::cross_entropy(rows, expected, options);
}

}  // namespace penstock::train
