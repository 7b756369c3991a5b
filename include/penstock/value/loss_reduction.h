// How the losses of the microbatches make the batch's loss, and so what each microbatch's backward starts
// from.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <variant>
#include <vector>

namespace penstock {

class LossReduction {
 public:
  //! The user's loss is a mean over rows; so is the batch's: microbatch i counts rows_i / rows.
  static LossReduction mean() { return LossReduction(Mean{}); }
  //! The user's loss is a sum; the batch's is the sum of them.
  static LossReduction sum() { return LossReduction(Sum{}); }
  //! The user's loss is a mean over what `weight` counts in the target, for example tokens that are not
  //! ignored.
  static LossReduction weighted(std::function<double(const c10::IValue& target)> weight) {
    return LossReduction(Weighted{std::move(weight)});
  }

  //! The gradient that each microbatch's loss starts backward with. `targets` may be empty unless weighted.
  //! UsageError where the counts differ, or weights are negative, not finite or all zero.
  std::vector<double> seeds(const std::vector<std::int64_t>& rows,
                            const std::vector<c10::IValue>& targets) const;

  //! The batch's loss: the microbatches' losses, times the seeds, summed.
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
