// The pipeline that users train with: the stages of this rank, a program, and `step`.
#pragma once

#include <penstock/runtime/data_parallel.h>
#include <penstock/runtime/loss_reduction.h>
#include <penstock/runtime/stage.h>
#include <penstock/runtime/step.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/program.h>

#include <ATen/core/Reduction.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock::runtime {

namespace detail {

template <class Type, class Other>
concept OtherThan = !std::is_same_v<std::decay_t<Type>, Other>;

}  // namespace detail

//! Computes the loss of one microbatch from the output of the last stage and the target. Constructible from
//! any function of
//!   - two tensors: a lambda, or a module such as `torch::nn::MSELoss()`;
//!   - two tensors and a reduction, such as `torch::mse_loss`, which is called with the mean;
//!   - two values of any structure and, optionally, the further keyword arguments of the loss.
class LossFunction {
 public:
  LossFunction() = default;
  LossFunction(std::nullptr_t) {}  // NOLINT: functions are meant to convert
  template <detail::OtherThan<LossFunction> Function>
  LossFunction(Function function) {  // NOLINT: functions are meant to convert
    using at::Tensor;
    using c10::IValue;
    if constexpr (std::is_constructible_v<Function, std::nullptr_t> && requires { function == nullptr; }) {
      if (function == nullptr) return;
    }
    if constexpr (requires(const Tensor& tensor) { function.ptr()->forward(tensor, tensor); }) {
      function_ = [module = function.ptr()](const IValue& output, const IValue& target,
                                            const value::Kwargs&) {
        return module->forward(output.toTensor(), target.toTensor());
      };
    } else if constexpr (std::is_invocable_r_v<Tensor, Function&, const IValue&, const IValue&,
                                               const value::Kwargs&>) {
      function_ = std::move(function);
    } else if constexpr (std::is_invocable_r_v<Tensor, Function&, const IValue&, const IValue&>) {
      function_ = [function](const IValue& output, const IValue& target, const value::Kwargs&) mutable {
        return function(output, target);
      };
    } else if constexpr (std::is_invocable_r_v<Tensor, Function&, const Tensor&, const Tensor&>) {
      function_ = [function](const IValue& output, const IValue& target, const value::Kwargs&) mutable {
        return function(output.toTensor(), target.toTensor());
      };
    } else {
      static_assert(
          std::is_invocable_r_v<Tensor, Function&, const Tensor&, const Tensor&, std::int64_t>,
          "a loss must be callable with two tensors, output and target, or with (const c10::IValue& output, "
          "const c10::IValue& target, const Kwargs& more): wrap other functions in a lambda, as in "
          "tensor_loss([](const at::Tensor& output, const at::Tensor& target) { return …; })");
      function_ = [function](const IValue& output, const IValue& target, const value::Kwargs&) mutable {
        return function(output.toTensor(), target.toTensor(), at::Reduction::Mean);
      };
    }
  }

  //! Whether there is a loss.
  explicit operator bool() const { return static_cast<bool>(function_); }
  //! Computes the loss; `more` holds the further keyword arguments (StepInput::loss_kwargs).
  at::Tensor operator()(const c10::IValue& output, const c10::IValue& target,
                        const value::Kwargs& more) const {
    return function_(output, target, more);
  }

 private:
  std::function<at::Tensor(const c10::IValue&, const c10::IValue&, const value::Kwargs&)> function_;
};

//! A function of two tensors, output and target, that returns the loss.
template <class Function>
concept TensorLoss = std::is_invocable_r_v<at::Tensor, Function&, const at::Tensor&, const at::Tensor&>;

//! Makes a loss from a function of two tensors, including one with `auto` parameters.
template <TensorLoss Function>
LossFunction tensor_loss(Function function) {
  return [function](const c10::IValue& output, const c10::IValue& target, const value::Kwargs&) mutable {
    return function(output.toTensor(), target.toTensor());
  };
}

//! How stages learn the shapes of the values they receive (docs/adr/0006).
enum class ShapeMode {
  Inferred,  //!< sent ahead if the batch has new shapes, then cached
  Static,    //!< sent in the first step; a later change is a ShapeError on every rank that lists all changes
  Dynamic,   //!< sent ahead of every message: shapes may change with every microbatch
};
std::string_view to_string(ShapeMode mode);

//! A value that stage `from` returns by name (StageResult::skips) and stage `to` takes as a keyword argument.
struct SkipValue {
  std::string name;
  StageId from;
  StageId to;
};

//! A parameter of a stage, by name.
struct ParameterLocation {
  StageId stage;
  std::string name;
};

//! A parameter that several stages hold. All copies start from the values at the first location; each step
//! sums their gradients.
using SharedParameter = std::vector<ParameterLocation>;

//! The state of the step on this rank, as a replaced action sees it.
struct StepView {
  const std::vector<value::Args>& args;  //!< of the first stage, by microbatch; empty on other ranks
  const std::vector<std::vector<value::Kwargs>>&
      kwargs;                               //!< by stage, then by microbatch; empty if there are none
  const std::vector<c10::IValue>& targets;  //!< by microbatch; empty if there are none
  const std::vector<at::Tensor>& losses;    //!< of the last stage, by microbatch; undefined until computed
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

//! Options of a pipeline. They must agree on all ranks, except where noted.
struct PipelineOptions {
  //! Set it on the rank of the last stage. Without a loss, a schedule can run `eval`, and `step` only if it
  //! has no backward pass (ForwardOnly).
  LossFunction loss{};
  //! If false, the model computes its loss itself and `loss` only extracts it from the output; there is no
  //! target.
  bool loss_needs_target = true;
  LossReduction reduction = LossReduction::mean();  //!< how the losses of the microbatches are combined
  //! Whether gradients are those of the batch loss (see `reduction`) or the plain sum over the microbatches.
  bool scale_grads = true;
  ShapeMode shapes = ShapeMode::Inferred;  //!< how stages learn the shapes of received values
  // How the values of a step are split into microbatches and merged; by default along dim 0.
  std::optional<value::ChunkSpec> args_spec{};
  std::optional<value::ChunkSpec> kwargs_spec{};
  std::optional<value::ChunkSpec> target_spec{};
  std::optional<value::ChunkSpec> output_spec{};
  std::vector<SkipValue> skips{};         //!< values that go to a later stage than the next one
  std::vector<SharedParameter> shared{};  //!< tied parameters of several stages
  bool return_outputs = true;             //!< default for StepInput::return_outputs
  bool loss_on_all_ranks = false;  //!< send the losses to every rank, not only to that of the last stage
  bool input_grads = false;        //!< also return the gradients that are added to the `.grad` of arguments
  //! Replicates or shards the stages of this rank: ReplicatedStages or ShardedStages.
  std::shared_ptr<DataParallel> data_parallel{};
  std::uint64_t seed = 0;     //!< seed of random operations (random.h)
  std::uint32_t replica = 0;  //!< data-parallel rank; random operations depend on it
  std::map<schedule::ActionKind, ActionFunction> custom{};  //!< replaces the execution of actions, by kind
  //! How the schedule is lowered. The constructor sets `skips` and, without data parallelism, disables
  //! `shard` and `reduce_grad`.
  schedule::LowerOptions lowering{};
};

//! The stages of this rank and a program. `step` trains on one batch, `eval` only runs its forward pass.
class PipelineSchedule {
 public:
  //! Builds a built-in schedule by name or kind. Collective: every rank of the stages' group must construct
  //! the same pipeline at the same time. The constructor checks that the ranks agree and opens all
  //! connections.
  PipelineSchedule(std::vector<PipelineStage> stages, std::string_view name, int microbatches,
                   PipelineOptions options = {});
  PipelineSchedule(std::vector<PipelineStage> stages, schedule::ScheduleKind kind, int microbatches,
                   PipelineOptions options = {});
  //! Lowers and validates a custom schedule table.
  PipelineSchedule(std::vector<PipelineStage> stages, const schedule::Schedule& schedule,
                   PipelineOptions options = {});
  //! Takes a validated program, for example from a file. Its skip edges must match those of the options. If
  //! it was validated for a send mode other than the group's, it is validated again, and a program that is
  //! not safe throws ScheduleError.
  PipelineSchedule(std::vector<PipelineStage> stages, schedule::Program program,
                   PipelineOptions options = {});

  //! Overloads for one stage per rank.
  PipelineSchedule(PipelineStage stage, std::string_view name, int microbatches, PipelineOptions options = {})
      : PipelineSchedule(one(std::move(stage)), name, microbatches, std::move(options)) {}
  PipelineSchedule(PipelineStage stage, schedule::ScheduleKind kind, int microbatches,
                   PipelineOptions options = {})
      : PipelineSchedule(one(std::move(stage)), kind, microbatches, std::move(options)) {}
  PipelineSchedule(PipelineStage stage, const schedule::Schedule& schedule, PipelineOptions options = {})
      : PipelineSchedule(one(std::move(stage)), schedule, std::move(options)) {}
  PipelineSchedule(PipelineStage stage, schedule::Program program, PipelineOptions options = {})
      : PipelineSchedule(one(std::move(stage)), std::move(program), std::move(options)) {}

  PipelineSchedule(PipelineSchedule&&) noexcept;
  PipelineSchedule& operator=(PipelineSchedule&&) noexcept;
  ~PipelineSchedule();

  //! Runs the forward and backward pass of one batch and accumulates the gradients in `.grad`. If it throws,
  //! the other ranks raise PeerFailed with the cause; ranks that had already finished raise it in their next
  //! call. Changes to gradients and buffers remain. The pipeline is then unusable: rebuild the world and
  //! construct a new one.
  //!
  //! Modules keep their current mode. UsageError on every rank if the schedule has a backward pass but no
  //! loss.
  StepResult step(const StepInput& input);
  template <
      std::same_as<value::Args> Positional = value::Args>  // a template, so that `step({})` selects StepInput
  StepResult step(Positional args = {}, c10::IValue target = {}, value::Kwargs kwargs = {}) {
    return step(StepInput{std::move(args), std::move(kwargs), std::move(target)});
  }
  //! Overload for a batch that is already split.
  template <std::same_as<Microbatches> Split>
  StepResult step(const Split& input) {
    return step_microbatches(input);
  }

  //! Runs only the forward pass of one batch, without gradients and in evaluation mode, then restores the
  //! mode of every module and submodule. Losses are computed if there is a target. A rank without inputs
  //! passes `{}`. (To only set the mode, call `train(false)`.)
  StepResult eval(const StepInput& input);
  template <std::same_as<value::Args> Positional = value::Args>
  StepResult eval(Positional args, c10::IValue target = {}, value::Kwargs kwargs = {}) {
    return eval(StepInput{std::move(args), std::move(kwargs), std::move(target)});
  }
  template <std::same_as<Microbatches> Split>
  StepResult eval(const Split& input) {
    return eval_microbatches(input);
  }

  //! Sets the stages of this rank to training mode, or to evaluation mode if `on` is false.
  void train(bool on = true);

  //! Scales the gradients of all stages so that their total norm is at most `max_norm`. Returns the norm
  //! before scaling. Collective: every rank must call it.
  double clip_grad_norm(double max_norm, double norm_type = 2.0);

  //! The program that `step` runs.
  const schedule::Program& program() const;
  //! The stages of this rank.
  const std::vector<PipelineStage>& stages() const;
  //! The number of steps run so far. Random operations depend on it; set it when a run resumes.
  std::uint64_t steps() const;
  void set_steps(std::uint64_t steps);

 private:
  static std::vector<PipelineStage> one(PipelineStage stage) { return {std::move(stage)}; }
  StepResult step_microbatches(const Microbatches& input);
  StepResult eval_microbatches(const Microbatches& input);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::runtime
