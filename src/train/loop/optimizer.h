// The optimizers of a run, for the parameters of a rank. The states have the names of Python's torch.optim,
// so that a checkpoint can be loaded in another topology. They are on the device of their parameter, as the
// fused kernels need them.
#pragma once

#include <penstock/runtime/stage_module.h>
#include <penstock/train/options.h>
#include <penstock/train/parameter_groups.h>

#include <map>
#include <string>
#include <vector>

namespace penstock::train {

class Optimizer {
 public:
  //! A name may occur more than once (copies of a tied parameter).
  Optimizer(std::vector<value::NamedTensor> parameters, const OptimizerOptions& options,
            const ParameterGroups& groups = {});

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
  using Members = std::vector<std::size_t>;  // indices of parameters
  struct Batch;                              // tensors of the parameters of one update

  std::vector<std::string> state_kinds() const;
  bool has_counts() const;
  bool treats_first_step_differently() const;
  std::map<bool, Members> by_first_step(const Members& members);
  Batch batch_of(const Members& members) const;
  void update(const Members& members, double rate, double weight_decay);

  OptimizerOptions options_;
  std::vector<value::NamedTensor> parameters_;
  std::vector<ParameterGroup> groups_;                     // of each parameter
  std::map<std::string, std::vector<at::Tensor>> states_;  // by kind, one per parameter
  std::vector<at::Tensor> counts_;                         // steps of each parameter
  std::vector<bool> started_;                              // known to have had a step
};

}  // namespace penstock::train
