// Applies a learning-rate schedule to an optimizer of libtorch.
#include "base/option_ranges.h"

#include <penstock/train/learning_rate.h>

#include <torch/optim/optimizer.h>

namespace penstock::train {

LearningRateScheduler::LearningRateScheduler(torch::optim::Optimizer& optimizer,
                                             const LearningRateOptions& options, std::int64_t steps)
    : optimizer_(optimizer), rate_(options, steps) {
  for (const torch::optim::OptimizerParamGroup& group : optimizer_.param_groups())
    peaks_.push_back(group.options().get_lr());
  set_step(1);
}

void LearningRateScheduler::set_step(std::int64_t step) {
  check_at_least(step, 1, "step");
  step_ = step;
  for (std::size_t i = 0; i < peaks_.size(); ++i)
    optimizer_.param_groups().at(i).options().set_lr(rate_.at(step, peaks_[i]));
}

}  // namespace penstock::train
