// The pipeline that users train with: the stages of this rank, a program, and `step`.
#pragma once

#include <penstock/runtime/action_function.h>
#include <penstock/runtime/data_parallel.h>
#include <penstock/runtime/loss_function.h>
#include <penstock/runtime/loss_reduction.h>
#include <penstock/runtime/stage.h>
#include <penstock/runtime/step.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/program.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::runtime {

//! How stages learn the shapes of the values they receive (docs/adr/0006).
enum class ShapeMode {
  Inferred,  //!< sent ahead if the batch has new shapes, then cached
  //! Sent in the first step. A later change is a ShapeError on every rank that lists all changes. On a device
  //! other than the CPU it is a ShapeError of the rank with the change and PeerFailed on the others: ranks
  //! then do not wait for each other at the start of a step.
  Static,
  Dynamic,  //!< sent ahead of every message: shapes may change with every microbatch
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

//! How actions are made and run: for custom actions and experiments. Most programs leave it alone.
struct ExecutionOptions {
  std::map<schedule::ActionKind, ActionFunction> custom{};  //!< replaces the execution of actions, by kind
  //! Called before each action, on the rank thread; before an overlap, and then for each of its parts. Unlike
  //! a function that replaces the parts, it does not prevent them from running concurrently.
  std::function<void(const schedule::Action&)> before_action{};
  //! How the schedule is lowered. The pipeline sets `skips` and, without data parallelism, disables `shard`
  //! and `reduce_grad`.
  schedule::LowerOptions lowering{};
};

//! Options of a pipeline. They must agree on all ranks, except where noted.
struct PipelineOptions {
  // The loss.

  //! Set it on the rank of the last stage. Without a loss, a schedule can run `eval`, and `step` only if it
  //! has no backward pass (ForwardOnly).
  LossFunction loss{};
  //! If false, the model computes its loss itself and `loss` only extracts it from the output; there is no
  //! target.
  bool loss_needs_target = true;
  LossReduction reduction = LossReduction::mean();  //!< how the losses of the microbatches are combined
  //! Whether gradients are those of the batch loss (see `reduction`) or the plain sum over the microbatches.
  bool scale_grads = true;

  // The structure of the model across stages.

  std::vector<SkipValue> skips{};         //!< values that go to a later stage than the next one
  std::vector<SharedParameter> shared{};  //!< tied parameters of several stages

  // Data parallelism and seeds.

  //! Replicates or shards the stages of this rank: ReplicatedStages or ShardedStages.
  std::shared_ptr<DataParallel> data_parallel{};
  std::uint32_t replica = 0;  //!< data-parallel rank; random operations depend on it
  std::uint64_t seed = 0;     //!< seed of random operations (random.h)

  // Shapes, and how the values of a step are split into microbatches and merged: by default along dim 0.

  ShapeMode shapes = ShapeMode::Inferred;  //!< how stages learn the shapes of received values
  std::optional<value::ChunkSpec> args_spec{};
  std::optional<value::ChunkSpec> kwargs_spec{};
  std::optional<value::ChunkSpec> target_spec{};
  std::optional<value::ChunkSpec> output_spec{};

  // Results.

  bool return_outputs = true;      //!< default for StepOptions::return_outputs
  bool loss_on_all_ranks = false;  //!< send the losses to every rank, not only to that of the last stage
  bool input_grads = false;        //!< also return the gradients that are added to the `.grad` of arguments

  ExecutionOptions execution{};  //!< custom actions and lowering
};

//! The stages of this rank: one stage, a list in braces or a vector.
class StageList {
 public:
  StageList(PipelineStage stage) : stages_{std::move(stage)} {}                 // NOLINT: implicit
  StageList(std::initializer_list<PipelineStage> stages) : stages_(stages) {}   // NOLINT: implicit
  StageList(std::vector<PipelineStage> stages) : stages_(std::move(stages)) {}  // NOLINT: implicit

  const std::vector<PipelineStage>& get() const { return stages_; }

 private:
  std::vector<PipelineStage> stages_;
};

//! The stages of this rank and a program. `step` trains on one batch, `eval` only runs its forward pass.
class PipelineSchedule {
 public:
  //! Builds a built-in schedule by name or kind. Collective: every rank of the stages' group must construct
  //! the same pipeline at the same time. The constructor checks that the ranks agree and opens all
  //! connections.
  PipelineSchedule(const StageList& stages, std::string_view name, int microbatches,
                   PipelineOptions options = {});
  PipelineSchedule(const StageList& stages, schedule::ScheduleKind kind, int microbatches,
                   PipelineOptions options = {});
  //! Lowers and validates a custom schedule table.
  PipelineSchedule(const StageList& stages, const schedule::Schedule& schedule, PipelineOptions options = {});
  //! Takes a validated program, for example from a file. Its skip edges must match those of the options. If
  //! it was validated for a send mode other than the group's, it is validated again, and a program that is
  //! not safe throws ScheduleError.
  PipelineSchedule(const StageList& stages, schedule::Program program, PipelineOptions options = {});

  PipelineSchedule(PipelineSchedule&&) noexcept;
  PipelineSchedule& operator=(PipelineSchedule&&) noexcept;
  ~PipelineSchedule();

  //! Runs the forward and backward pass of one batch and accumulates the gradients in `.grad`. The rank of
  //! the first stage passes the arguments, the rank of the last stage the target of the loss; both are split
  //! into microbatches. If it throws, the other ranks raise PeerFailed with the cause; ranks that had already
  //! finished raise it in their next call. Changes to gradients and buffers remain. The pipeline is then
  //! unusable: rebuild the world and construct a new one.
  //!
  //! Tensors that require a gradient are treated the same whether they are positional or keyword arguments:
  //! the gradient of the batch loss is added to the `.grad` of leaves. For non-leaf tensors, the backward
  //! pass of the operations that produced them runs once, at the end of the step.
  //!
  //! Modules keep their current mode. UsageError on every rank if the schedule has a backward pass but no
  //! loss.
  StepResult step(value::Args args = {}, c10::IValue target = {}, const StepOptions& options = {});
  //! `step` for a batch that is already split.
  StepResult step_microbatches(const Microbatches& batch);

  //! Runs only the forward pass of one batch, without gradients and in evaluation mode, then restores the
  //! mode of every module and submodule. Losses are computed if there is a target. A rank without inputs
  //! passes `{}`. (To only set the mode, call `train(false)`.)
  StepResult eval(value::Args args, c10::IValue target = {}, const StepOptions& options = {});
  //! `eval` for a batch that is already split.
  StepResult eval_microbatches(const Microbatches& batch);

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
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::runtime
