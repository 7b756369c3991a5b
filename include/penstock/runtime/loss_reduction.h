// Combines the losses of the microbatches into the loss of the batch. This determines the gradient with which
// the backward pass of each microbatch starts.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

namespace penstock::runtime {

//! The rule that combines the losses of the microbatches.
class LossReduction {
 public:
  //! The user's loss is a mean over rows, and so is the batch loss: microbatch i has weight rows_i / rows.
  static LossReduction mean() { return LossReduction(Mean{}); }
  //! The user's loss is a sum; the batch loss is the sum over the microbatches.
  static LossReduction sum() { return LossReduction(Sum{}); }
  //! The user's loss is a mean over the items of the target that `weight` counts, and so is the batch loss:
  //! microbatch i has weight weight_i / sum of weights. A microbatch of weight 0 contributes nothing, even if
  //! its loss is NaN.
  static LossReduction weighted(std::function<double(const c10::IValue& target)> weight) {
    return LossReduction(Weighted{std::move(weight), std::nullopt});
  }
  //! The user's loss is a mean over the valid labels (as in cross_entropy), and so is the batch loss. Equals
  //! `weighted` by the number of labels other than `ignored`. The target must be a single tensor.
  static LossReduction mean_over_valid_labels(std::int64_t ignored = -100);

  //! Returns the factor of each microbatch's loss in the batch loss. It is also the gradient with which the
  //! backward pass of that loss starts. `targets` may be empty unless the reduction is weighted. Rows or
  //! weights are divided by `denominator`, by default their sum; all factors are 0 if it is 0. Throws
  //! UsageError if the counts differ, or if a weight or the denominator is negative or not finite.
  std::vector<double> initial_gradients(const std::vector<std::int64_t>& rows,
                                        const std::vector<c10::IValue>& targets,
                                        std::optional<double> denominator = std::nullopt) const;

  //! The weight of the target in a weighted reduction; nullopt for other reductions.
  std::optional<double> weight_of(const c10::IValue& target) const;

  //! The batch loss: the sum of losses times factors. Losses with a factor of 0 are left out.
  static at::Tensor reduce(const std::vector<at::Tensor>& losses, const std::vector<double>& factors);

 private:
  struct Mean {};
  struct Sum {};
  struct Weighted {
    std::function<double(const c10::IValue&)> weight;
    std::optional<std::int64_t> ignored_label{};  // if the weight is the number of the other labels
  };
  using Rule = std::variant<Mean, Sum, Weighted>;

  explicit LossReduction(Rule rule) : rule_(std::move(rule)) {}

  Rule rule_;
};

}  // namespace penstock::runtime
