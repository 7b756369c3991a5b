// AdamW and SGD for the parameters of a rank. The states have names, so that a checkpoint can be loaded in
// another topology. They are on the device of their parameter, as the fused kernels need them.
#pragma once

#include <penstock/runtime/stage_module.h>
#include <penstock/train/options.h>

#include <vector>

namespace penstock::train {

class Optimizer {
 public:
  //! A name may occur more than once (copies of a tied parameter).
  Optimizer(std::vector<value::NamedTensor> parameters, const OptimizerOptions& options);

  void zero_grad();
  //! Does not change parameters without a gradient.
  void step(double rate);
  void scale_gradients(double factor);

  const std::vector<value::NamedTensor>& parameters() const { return parameters_; }
  //! A kind of state, with one tensor per parameter under the name of the parameter.
  struct State {
    std::string kind;
    std::vector<value::NamedTensor> tensors;
  };
  std::vector<State> states() const;

 private:
  OptimizerOptions options_;
  std::vector<value::NamedTensor> parameters_;
  std::vector<at::Tensor> first_, second_, counts_;
};

//! Returns the learning rate of a step (from 1).
double rate_at(const LearningRateOptions& options, std::int64_t step, std::int64_t steps);

}  // namespace penstock::train
