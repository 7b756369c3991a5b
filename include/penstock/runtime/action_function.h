// Functions that replace the execution of an action, for custom schedules, progress displays and experiments.
#pragma once

#include <penstock/schedule/action.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <concepts>
#include <functional>
#include <utility>
#include <vector>

namespace penstock::runtime {

//! The state of the step on this rank, as a replaced action sees it.
struct StepView {
  const std::vector<value::Args>& args;  //!< of the first stage, by microbatch; empty on other ranks
  const std::vector<std::vector<value::Kwargs>>&
      kwargs;                               //!< by stage, then by microbatch; empty if there are none
  const std::vector<c10::IValue>& targets;  //!< by microbatch; empty if there are none
  const std::vector<at::Tensor>& losses;    //!< of the last stage, by microbatch; undefined until computed
  //! Runs the default implementation of one part of an overlap (Action::forward_part, backward_part), instead
  //! of `run_default`, which runs both.
  const std::function<void(const schedule::Action&)>& run_part;
};

//! Replaces the execution of an action; `run_default` runs its default implementation. Constructible from
//! any function of (action, run_default) or (action, run_default, view).
class ActionFunction {
 public:
  //! Runs the default implementation of the action. A second call is an error.
  using DefaultAction = std::function<void()>;

  template <std::invocable<const schedule::Action&, const DefaultAction&, const StepView&> Function>
  ActionFunction(Function function)  // NOLINT: functions are meant to convert
      : function_(std::move(function)) {}
  template <std::invocable<const schedule::Action&, const DefaultAction&> Function>
  ActionFunction(Function function)  // NOLINT: functions are meant to convert
      : function_([function](const schedule::Action& action, const DefaultAction& run_default,
                             const StepView&) mutable { function(action, run_default); }) {}
  ActionFunction() = default;

  void operator()(const schedule::Action& action, const DefaultAction& run_default,
                  const StepView& view) const {
    function_(action, run_default, view);
  }

 private:
  std::function<void(const schedule::Action&, const DefaultAction&, const StepView&)> function_;
};

}  // namespace penstock::runtime
