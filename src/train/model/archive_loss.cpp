// Losses of exported models.
#include "train/model/archive_loss.h"

#include "base/option_ranges.h"
#include "base/text.h"
#include "train/model/cross_entropy.h"

#include <penstock/base/error.h>
#include <penstock/value/tree.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>

#include <algorithm>

namespace penstock::train {
namespace {

// Moves the classes to the last dim. Class indices have no dim of classes.
at::Tensor with_classes_last(const at::Tensor& tensor, std::optional<std::int64_t> class_dim) {
  return class_dim && tensor.is_floating_point() ? tensor.movedim(*class_dim, -1) : tensor;
}

// The sum of the class weights of the valid labels. The rows of soft targets count alike.
double weight_of_labels(const c10::IValue& target, const at::Tensor& weights) {
  const at::Tensor labels = target.toTensor().flatten();
  if (labels.is_floating_point()) return static_cast<double>(labels.numel());
  const at::Tensor valid = labels.masked_select(labels.ne(kIgnoredLabel));
  return weights.index_select(0, valid).to(at::kDouble).sum().item<double>();
}

}  // namespace

at::Tensor in_float32(const at::Tensor& tensor) {
  const bool reduced = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  return reduced ? tensor.to(at::kFloat) : tensor;
}

runtime::LossFunction archive_loss(std::size_t leaf, LossKind kind, const LossOptions& options) {
  return [leaf, kind, smoothing = options.label_smoothing, weights = ClassWeights(options),
          class_dim = options.class_dim](const c10::IValue& output, const c10::IValue& expected,
                                         const value::Kwargs&) {
    const at::Tensor values =
        with_classes_last(in_float32(value::flatten(output).leaves.at(leaf).toTensor()), class_dim);
    const at::Tensor target = with_classes_last(expected.toTensor(), class_dim);
    switch (kind) {
      case LossKind::Mse:
        return at::mse_loss(values, target);
      case LossKind::L1:
        return at::l1_loss(values, target);
      case LossKind::Bce:
        return at::binary_cross_entropy_with_logits(values, target, weights.on(values.device()));
      case LossKind::CrossEntropy:
        return cross_entropy(values, target, weights.on(values.device()), smoothing);
    }
    return at::Tensor();
  };
}

runtime::LossReduction archive_reduction(LossKind kind, const LossOptions& options) {
  if (kind != LossKind::CrossEntropy) return runtime::LossReduction::mean();
  if (options.class_weights.empty()) return runtime::LossReduction::mean_over_valid_labels(kIgnoredLabel);
  return runtime::LossReduction::weighted([weights = ClassWeights(options)](const c10::IValue& target) {
    const at::Device device = target.toTensor().device();
    return weight_of_labels(target, weights.on(device));
  });
}

void check_loss_options(LossKind kind, const LossOptions& options, std::optional<std::int64_t> classes) {
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    throw UsageError("label_smoothing must be at least 0 and at most 1", {}, "for example 0.1");
  if (options.label_smoothing > 0 && kind != LossKind::CrossEntropy)
    throw UsageError(str_cat("label_smoothing does not apply to the loss ", to_string(kind)), {},
                     "leave it out, or use cross_entropy");
  if (options.class_dim) {
    if (kind != LossKind::CrossEntropy && kind != LossKind::Bce)
      throw UsageError(str_cat("class_dim does not apply to the loss ", to_string(kind)), {},
                       "leave it out, or use cross_entropy or bce");
    check_at_least(*options.class_dim, 1, "class_dim");
  }
  if (options.class_weights.empty()) return;
  if (kind != LossKind::CrossEntropy && kind != LossKind::Bce)
    throw UsageError(str_cat("class_weights do not apply to the loss ", to_string(kind)), {},
                     "leave them out, or use cross_entropy or bce");
  for (const double weight : options.class_weights) check_not_negative(weight, "a class weight");
  if (std::none_of(options.class_weights.begin(), options.class_weights.end(),
                   [](double w) { return w > 0; }))
    throw UsageError("all class_weights are 0", {}, "give at least one class a weight greater than 0");
  // A microbatch of labels with weight 0 has no share in the mean, so its smoothing terms would be lost.
  if (options.label_smoothing > 0 && kind == LossKind::CrossEntropy &&
      std::find(options.class_weights.begin(), options.class_weights.end(), 0.0) !=
          options.class_weights.end())
    throw UsageError("label_smoothing cannot be combined with a class weight of 0", {},
                     "use a small weight instead, such as 1e-6");
  const auto count = static_cast<std::int64_t>(options.class_weights.size());
  if (classes && *classes != count)
    throw UsageError(
        str_cat("there are ", count, " class_weights, but the output has ", *classes, " classes"), {},
        "give one weight per class");
}

}  // namespace penstock::train
