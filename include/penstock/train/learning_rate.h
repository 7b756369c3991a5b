// Learning-rate schedules: of `train::run`, and for the optimizers of libtorch in any other training loop.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace penstock::train {

//! How the learning rate changes after the warmup. With n steps since the warmup, of N in total, and the
//! final fraction f, the rate is `peak` times:
enum class LearningRateKind {
  Constant,           //!< 1
  Linear,             //!< 1 - (1 - f) n/N
  Cosine,             //!< f + (1 - f) (1 + cos(pi n/N)) / 2
  WarmupStableDecay,  //!< 1, then linear to f in the last `decay` steps
  Polynomial,         //!< f + (1 - f) (1 - n/N)^power
  Step,      //!< gamma^k, where k is the number of complete periods of `period` steps before this one
  OneCycle,  //!< a cosine from `start_fraction` to 1 during the warmup, then one from 1 to f
};

//! The name on the command line and in configuration files: `cosine`, `wsd`, `one_cycle`, …
std::string_view to_string(LearningRateKind kind);

//! The learning rate over the steps of a run.
struct LearningRateOptions {
  LearningRateKind kind = LearningRateKind::Constant;
  double peak = 3e-3;       //!< the rate after the warmup
  std::int64_t warmup = 0;  //!< steps of linear warmup from 0; the rising phase of OneCycle, which needs one
  //! The rate of the last step, as a fraction of `peak`; default: 0.1, for OneCycle 4e-6. Not for Constant
  //! and Step.
  std::optional<double> final_fraction{};
  std::optional<std::int64_t> decay{};   //!< WarmupStableDecay: steps; default: a tenth of all steps
  std::optional<double> power{};         //!< Polynomial; default 1
  std::optional<std::int64_t> period{};  //!< Step: steps per period; has no default
  std::optional<double> gamma{};         //!< Step: the factor after each period; default 0.1
  //! OneCycle: the rate of the first step, as a fraction of `peak`; default 0.04.
  std::optional<double> start_fraction{};
};

//! The learning rate as a function of the step. A step after the last one has the rate of the last one.
class LearningRate {
 public:
  //! Throws UsageError if the options are invalid for a run of `steps` steps, or do not apply to the kind.
  LearningRate(const LearningRateOptions& options, std::int64_t steps);

  //! Returns the rate of a step (from 1).
  double at(std::int64_t step) const;
  //! Returns the rate of a step for another peak.
  double at(std::int64_t step, double peak) const;

 private:
  LearningRateOptions options_;
  std::int64_t steps_;
};

//! Sets the learning rate of an optimizer of libtorch before each step. Each parameter group keeps its own
//! peak: the rate that it has when the scheduler is created. `LearningRateOptions::peak` is ignored.
class LearningRateScheduler {
 public:
  //! Sets the rates of step 1. The optimizer must outlive the scheduler and keep its groups. Throws
  //! UsageError like LearningRate.
  LearningRateScheduler(torch::optim::Optimizer& optimizer, const LearningRateOptions& options,
                        std::int64_t steps);

  //! Sets the rates of the next step. Call after `optimizer.step()`.
  void step() { set_step(step_ + 1); }
  //! Sets the rates of a step (from 1), to resume a run. Throws UsageError if it is less than 1.
  void set_step(std::int64_t step);
  //! The step whose rates the optimizer has.
  std::int64_t current_step() const { return step_; }

 private:
  torch::optim::Optimizer& optimizer_;
  LearningRate rate_;
  std::vector<double> peaks_;  // per parameter group
  std::int64_t step_ = 1;
};

}  // namespace penstock::train
