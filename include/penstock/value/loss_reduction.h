// How the losses of the microbatches make the batch's loss, and so what each microbatch's backward starts
// from.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

namespace penstock {

class LossReduction {
 public:
  //! The user's loss is a mean over rows; so is the batch's: microbatch i counts rows_i / rows.
  static LossReduction mean() { return LossReduction(Mean{}); }
  //! The user's loss is a sum; the batch's is the sum of them.
  static LossReduction sum() { return LossReduction(Sum{}); }
  //! The user's loss is a mean over what `weight` counts in the target; so is the batch's: microbatch i
  //! counts weight_i / sum of weights. A microbatch of weight 0 adds nothing, even if its loss is NaN.
  static LossReduction weighted(std::function<double(const c10::IValue& target)> weight) {
    return LossReduction(Weighted{std::move(weight)});
  }
  //! The user's loss is a mean over the valid labels, as cross_entropy's is; so is the batch's: `weighted` by
  //! the number of labels that are not `ignored`. The target must be one tensor.
  static LossReduction mean_over_valid_labels(std::int64_t ignored = -100);

  //! The gradient that each microbatch's loss starts backward with. `targets` may be empty unless weighted.
  //! Rows or weights are divided by `denominator`, or else by their sum; all are 0 where that is 0.
  //! UsageError where the counts differ, or a weight or the denominator is negative or not finite.
  std::vector<double> seeds(const std::vector<std::int64_t>& rows, const std::vector<c10::IValue>& targets,
                            std::optional<double> denominator = std::nullopt) const;

  //! What the target counts in a weighted reduction; nothing in the others.
  std::optional<double> weight_of(const c10::IValue& target) const;

  //! The batch's loss: the microbatches' losses, times the seeds, summed. Losses with a seed of 0 are left
  //! out.
  static at::Tensor reduce(const std::vector<at::Tensor>& losses, const std::vector<double>& seeds);

 private:
  struct Mean {};
  struct Sum {};
  struct Weighted {
    std::function<double(const c10::IValue&)> weight;
  };
  using Rule = std::variant<Mean, Sum, Weighted>;

  explicit LossReduction(Rule rule) : rule_(std::move(rule)) {}

  Rule rule_;
};

}  // namespace penstock
