// The pipeline that users train with: the stages of this rank, a program, and `step`.
#pragma once

#include <penstock/runtime/data_parallel.h>
#include <penstock/runtime/stage.h>
#include <penstock/runtime/step.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/program.h>
#include <penstock/value/loss_reduction.h>

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

namespace penstock {

//! The loss of one microbatch, from the last stage's output and the microbatch's target. From any function of
//!   - two tensors: a lambda, or a module such as `torch::nn::MSELoss()`;
//!   - two tensors and a reduction, as `torch::mse_loss` is: it reduces by the mean;
//!   - two values of any structure, and the further arguments of the loss if it takes a third.
class LossFunction {
 public:
  LossFunction() = default;
  LossFunction(std::nullptr_t) {}  // NOLINT: functions are meant to convert
  template <class Function>
  requires(!std::is_same_v<std::decay_t<Function>, LossFunction>) LossFunction(Function function) {  // NOLINT
    using at::Tensor;
    using c10::IValue;
    if constexpr (std::is_constructible_v<Function, std::nullptr_t> && requires { function == nullptr; }) {
      if (function == nullptr) return;
    }
    if constexpr (requires(const Tensor& tensor) { function.ptr()->forward(tensor, tensor); }) {
      function_ = [module = function.ptr()](const IValue& output, const IValue& target, const Kwargs&) {
        return module->forward(output.toTensor(), target.toTensor());
      };
    } else if constexpr (std::is_invocable_r_v<Tensor, Function&, const IValue&, const IValue&,
                                               const Kwargs&>) {
      function_ = std::move(function);
    } else if constexpr (std::is_invocable_r_v<Tensor, Function&, const IValue&, const IValue&>) {
      function_ = [function](const IValue& output, const IValue& target, const Kwargs&) mutable {
        return function(output, target);
      };
    } else if constexpr (std::is_invocable_r_v<Tensor, Function&, const Tensor&, const Tensor&>) {
      function_ = [function](const IValue& output, const IValue& target, const Kwargs&) mutable {
        return function(output.toTensor(), target.toTensor());
      };
    } else {
      static_assert(
          std::is_invocable_r_v<Tensor, Function&, const Tensor&, const Tensor&, std::int64_t>,
          "a loss is a function of two tensors, output and target, or of (const c10::IValue& output, "
          "const c10::IValue& target, const Kwargs& more): wrap any other in a lambda, as in "
          "tensor_loss([](const at::Tensor& output, const at::Tensor& target) { return …; })");
      function_ = [function](const IValue& output, const IValue& target, const Kwargs&) mutable {
        return function(output.toTensor(), target.toTensor(), at::Reduction::Mean);
      };
    }
  }

  explicit operator bool() const { return static_cast<bool>(function_); }
  at::Tensor operator()(const c10::IValue& output, const c10::IValue& target, const Kwargs& more) const {
    return function_(output, target, more);
  }

 private:
  std::function<at::Tensor(const c10::IValue&, const c10::IValue&, const Kwargs&)> function_;
};

//! From a function of two tensors; also from one whose parameters are `auto`.
template <class Function>
requires std::is_invocable_r_v<at::Tensor, Function&, const at::Tensor&, const at::Tensor&> LossFunction
tensor_loss(Function function) {
  return [function](const c10::IValue& output, const c10::IValue& target, const Kwargs&) mutable {
    return function(output.toTensor(), target.toTensor());
  };
}

//! How stages learn the shapes of what they receive (docs/adr/0006).
enum class ShapeMode {
  Inferred,  //!< sent ahead in a step whose batch has new shapes, remembered afterwards
  Static,    //!< the same in the first step; later changes are a ShapeError that names each, on every rank
  Dynamic,   //!< sent ahead of every message: shapes may change with every microbatch
};

//! A value that `from` gives by name (StageResult::skips) and `to` takes as a keyword argument.
struct SkipValue {
  std::string name;
  StageId from;
  StageId to;
};

struct ParameterPlace {
  StageId stage;
  std::string name;
};

//! One parameter that several stages hold. All start from the first place's values; each step sums their
//! gradients.
using SharedParameter = std::vector<ParameterPlace>;

//! What a replaced action sees of the step on this rank.
struct StepView {
  const std::vector<Args>& args;  //!< of the first stage, by microbatch; empty elsewhere
  const std::vector<std::vector<Kwargs>>&
      kwargs;                               //!< by stage, then by microbatch; empty where there are none
  const std::vector<c10::IValue>& targets;  //!< by microbatch; empty where there are none
  const std::vector<at::Tensor>& losses;    //!< of the last stage, by microbatch; undefined until computed
};

//! Replaces what the executor does for an action; `usual` does it. From any function (action, usual) or
//! (action, usual, view).
class ActionFunction {
 public:
  using Usual = std::function<void()>;

  template <class Function>
  requires std::is_invocable_v<Function, const Action&, const Usual&, const StepView&> ActionFunction(
      Function function)  // NOLINT: functions are meant to convert
      : function_(std::move(function)) {}
  template <class Function>
  requires std::is_invocable_v<Function, const Action&, const Usual&> ActionFunction(
      Function function)  // NOLINT
      : function_([function](const Action& action, const Usual& usual, const StepView&) mutable {
          function(action, usual);
        }) {}
  ActionFunction() = default;

  void operator()(const Action& action, const Usual& usual, const StepView& view) const {
    function_(action, usual, view);
  }

 private:
  std::function<void(const Action&, const Usual&, const StepView&)> function_;
};

struct PipelineOptions {
  //! On the rank of the last stage. A schedule without a loss can run `eval`, and `step` if it has no
  //! backward (ForwardOnly).
  LossFunction loss{};
  //! Off: the model computes its loss itself, and `loss` only finds it in the output; there is no target.
  bool loss_needs_target = true;
  LossReduction reduction = LossReduction::mean();
  //! Whether gradients are the batch's (as `reduction` says), or the plain sum of the microbatches'.
  bool scale_grads = true;
  ShapeMode shapes = ShapeMode::Inferred;
  std::optional<ChunkSpec> args_spec{};
  std::optional<ChunkSpec> kwargs_spec{};
  std::optional<ChunkSpec> target_spec{};
  std::optional<ChunkSpec> output_spec{};
  std::vector<SkipValue> skips{};
  std::vector<SharedParameter> shared{};
  bool return_outputs = true;  //!< unless the step says otherwise
  bool loss_on_all_ranks = false;
  bool input_grads = false;  //!< return the gradients of arguments, besides adding them to `.grad`
  std::shared_ptr<DataParallel> data_parallel{};
  std::uint64_t seed = 0;     //!< of random operations (random.h)
  std::uint32_t replica = 0;  //!< the data-parallel rank, for the same
  std::map<ActionKind, ActionFunction> custom{};
  //! How a schedule is lowered; skips, and sharding without data parallelism, are filled in.
  LowerOptions lowering{};
};

class PipelineSchedule {
 public:
  //! A built-in schedule by name or kind. Every rank of the stages' group must make the same pipeline at the
  //! same time; what must agree is compared, and all connections are opened.
  PipelineSchedule(std::vector<PipelineStage> stages, std::string_view name, int microbatches,
                   PipelineOptions options = {});
  PipelineSchedule(std::vector<PipelineStage> stages, ScheduleKind kind, int microbatches,
                   PipelineOptions options = {});
  //! A user's own table, lowered and proven here.
  PipelineSchedule(std::vector<PipelineStage> stages, const Schedule& schedule, PipelineOptions options = {});
  //! A proven program, for example from a file. Its skip edges must be those of the options.
  PipelineSchedule(std::vector<PipelineStage> stages, Program program, PipelineOptions options = {});

  //! The same for one stage per rank.
  PipelineSchedule(PipelineStage stage, std::string_view name, int microbatches, PipelineOptions options = {})
      : PipelineSchedule(one(std::move(stage)), name, microbatches, std::move(options)) {}
  PipelineSchedule(PipelineStage stage, ScheduleKind kind, int microbatches, PipelineOptions options = {})
      : PipelineSchedule(one(std::move(stage)), kind, microbatches, std::move(options)) {}
  PipelineSchedule(PipelineStage stage, const Schedule& schedule, PipelineOptions options = {})
      : PipelineSchedule(one(std::move(stage)), schedule, std::move(options)) {}
  PipelineSchedule(PipelineStage stage, Program program, PipelineOptions options = {})
      : PipelineSchedule(one(std::move(stage)), std::move(program), std::move(options)) {}

  PipelineSchedule(PipelineSchedule&&) noexcept;
  PipelineSchedule& operator=(PipelineSchedule&&) noexcept;
  ~PipelineSchedule();

  //! Runs one batch forward and backward; gradients are added to the parameters'. When it throws, the other
  //! ranks raise PeerFailed with the cause (those that had done their part, in their next call), nothing of
  //! the step is left but what was added to gradients and buffers, and the pipeline is no longer usable:
  //! rebuild the world and make a new one.
  //!
  //! The modules run in the mode that they are in. UsageError, on every rank, for a schedule with backward
  //! that has no loss.
  StepResult step(const StepInput& input);
  template <std::same_as<Args> Positional = Args>  // a template, so that `step({})` means the other
  StepResult step(Positional args = {}, c10::IValue target = {}, Kwargs kwargs = {}) {
    return step(StepInput{std::move(args), std::move(kwargs), std::move(target)});
  }
  //! The same for a batch that is split already.
  template <std::same_as<Microbatches> Split>
  StepResult step(const Split& input) {
    return step_microbatches(input);
  }

  //! Runs one batch forward only, without gradients and in evaluation mode; afterwards every module and
  //! submodule is in the mode that it was in. Losses are computed where there is a target.
  StepResult eval(const StepInput& input);
  template <std::same_as<Args> Positional = Args>
  StepResult eval(Positional args = {}, c10::IValue target = {}, Kwargs kwargs = {}) {
    return eval(StepInput{std::move(args), std::move(kwargs), std::move(target)});
  }
  template <std::same_as<Microbatches> Split>
  StepResult eval(const Split& input) {
    return eval_microbatches(input);
  }

  //! Switches the stages of this rank to training mode, or to evaluation mode if off.
  void train(bool on = true);

  //! Scales the gradients of all stages so that the norm over all of them is at most `max_norm`; the norm
  //! before. Every rank must call it.
  double clip_grad_norm(double max_norm, double norm_type = 2.0);

  const Program& program() const;
  const std::vector<PipelineStage>& stages() const;
  //! How many steps have been run; random operations depend on it, so that a resumed run can go on with the
  //! same.
  std::uint64_t steps() const;
  void set_steps(std::uint64_t steps);

 private:
  static std::vector<PipelineStage> one(PipelineStage stage) { return {std::move(stage)}; }
  StepResult step_microbatches(const Microbatches& input);
  StepResult eval_microbatches(const Microbatches& input);

  struct Content;
  std::unique_ptr<Content> content_;
};

}  // namespace penstock
