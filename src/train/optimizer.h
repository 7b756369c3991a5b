// AdamW and SGD over a rank's parameters, with states that have names, so that a checkpoint of one topology
// serves another.
#pragma once

#include <penstock/runtime/stage_module.h>
#include <penstock/train/options.h>

#include <vector>

namespace penstock::train {

class Optimizer {
 public:
  //! The same name may stand twice (copies of a tied parameter).
  Optimizer(std::vector<NamedTensor> parameters, const OptimizerOptions& options);

  void zero_grad();
  //! Parameters without a gradient are left as they are.
  void step(double rate);
  void scale_gradients(double factor);

  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  //! One item for each parameter, named like it: `exp_avg` and `exp_avg_sq`, or `momentum`; made on first
  //! use.
  struct State {
    std::string kind;
    std::vector<NamedTensor> tensors;
  };
  std::vector<State> states() const;

 private:
  OptimizerOptions options_;
  std::vector<NamedTensor> parameters_;
  std::vector<at::Tensor> first_, second_, counts_;
};

//! The learning rate of a step (from 1).
double rate_at(const RateOptions& options, std::int64_t step, std::int64_t steps);

}  // namespace penstock::train
