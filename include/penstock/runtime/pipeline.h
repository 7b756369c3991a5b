// The pipeline that users train with: the stages of this rank, a program, and `step`.
#pragma once

#include <penstock/runtime/data_parallel.h>
#include <penstock/runtime/stage.h>
#include <penstock/runtime/step.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/program.h>
#include <penstock/value/loss_reduction.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

//! The loss of one microbatch, from the last stage's output and the microbatch's target.
using LossFunction =
    std::function<at::Tensor(const c10::IValue& output, const c10::IValue& target, const Kwargs& more)>;

//! From a function of two tensors.
template <class Function>
requires std::is_invocable_r_v<at::Tensor, Function, const at::Tensor&, const at::Tensor&> LossFunction
tensor_loss(Function function) {
  return [function](const c10::IValue& output, const c10::IValue& target, const Kwargs&) {
    return function(output.toTensor(), target.toTensor());
  };
}

//! How stages learn the shapes of what they receive (docs/adr/0007).
enum class ShapeMode {
  Inferred,  //!< sent ahead in a step whose batch has new shapes, remembered afterwards
  Static,    //!< the same in the first step; later changes are a ShapeError on every rank
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
  LossFunction loss{};  //!< on the rank of the last stage
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
  bool return_outputs = true;
  bool loss_on_all_ranks = false;
  bool input_grads = false;  //!< of arguments that require a gradient
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
  PipelineSchedule(PipelineSchedule&&) noexcept;
  PipelineSchedule& operator=(PipelineSchedule&&) noexcept;
  ~PipelineSchedule();

  //! Runs one batch forward and backward; gradients are added to the parameters'. When it throws, the other
  //! ranks raise PeerFailed with the cause (those that had done their part, in their next call), nothing of
  //! the step is left but what was added to gradients and buffers, and the pipeline is no longer usable:
  //! rebuild the world and make a new one.
  StepResult step(const StepInput& input);
  StepResult step(Args args = {}, c10::IValue target = {}, Kwargs kwargs = {});

  //! Runs one batch forward only, without gradients. Losses are computed where there is a target.
  StepResult eval(const StepInput& input);
  StepResult eval(Args args = {}, c10::IValue target = {}, Kwargs kwargs = {});

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
  struct Content;
  std::unique_ptr<Content> content_;
};

}  // namespace penstock
