// PipelineSchedule: construction, training steps and evaluation steps.
#include "base/log_line.h"
#include "base/text.h"
#include "comm/failure/exception_text.h"
#include "comm/world/group_use.h"
#include "runtime/backward/shared_parameters.h"
#include "runtime/setup/agreement.h"
#include "runtime/setup/first_inputs.h"
#include "runtime/setup/make_setup.h"
#include "runtime/setup/signature.h"
#include "runtime/step/input_grads.h"
#include "runtime/step/split_batch.h"
#include "runtime/step/step_result.h"

#include <penstock/base/error.h>
#include <penstock/runtime/pipeline.h>

#include <ATen/core/grad_mode.h>

#include <map>
#include <set>
#include <utility>

namespace penstock::runtime {
namespace {

// Runs `body`. If it throws, reports the cause to the other ranks before rethrowing, unless all ranks throw
// the same error themselves (`common`): a slower rank would then raise PeerFailed instead of its own error.
template <class Body>
auto run_and_report(comm::Group group, Body&& body, const bool& common = false) {
  try {
    return body();
  } catch (...) {
    if (group.size() > 1 && !common) group.fail(comm::current_exception_text());
    throw;
  }
}

// Keeps all stages of a rank in evaluation mode during its lifetime.
class EvalMode {
 public:
  explicit EvalMode(const std::vector<PipelineStage>& stages) {
    try {
      for (const PipelineStage& stage : stages) restore_.push_back(stage.module().enter_eval());
    } catch (...) {
      restore_all();
      throw;
    }
  }
  ~EvalMode() { restore_all(); }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  // The functions come from users' modules, and an exception must not leave a destructor.
  void restore_all() noexcept {
    for (auto restore = restore_.rbegin(); restore != restore_.rend(); ++restore) {
      try {
        (*restore)();
      } catch (const std::exception& error) {
        Log(LogLevel::Warn) << "a stage could not return to its training mode: " << error.what();
      }
    }
  }

  std::vector<std::function<void()>> restore_;
};

}  // namespace

struct PipelineSchedule::Impl {
  explicit Impl(PipelineSetup&& made) : setup(with_split_group(std::move(made))), shared(setup) {
    known_of_rank.resize(static_cast<std::size_t>(setup.group.size()));
    warm_up(setup);
  }

  // The group is split only after all ranks agree on the setup.
  static PipelineSetup with_split_group(PipelineSetup&& made) {
    compare_setups(made);
    learn_from_all_ranks(made);
    if (made.group.size() > 1) made.group = duplicate(made.group, comm::GroupUse::Transfers);
    return std::move(made);
  }

  // `Input` is UnsplitBatch or Microbatches.
  template <class Input>
  StepResult step(const Input& input);
  template <class Input>
  StepResult eval(const Input& input);
  template <class Input>
  StepResult run(const Input& input, bool train);
  std::vector<StepNote> agree_on(const StepNote& note, const SplitBatch& split,
                                 std::optional<NoteExchange>& late_notes);
  void check_late(const std::vector<StepNote>& notes, const std::vector<StepNote>& expected) const;
  void check_static(const std::vector<StepNote>& notes, const StepBatch& batch);
  StepShapes shapes_of(const std::vector<StepNote>& notes, bool train) const;
  const schedule::Program& program_for(bool train);

  PipelineSetup setup;
  SharedParameters shared;
  std::optional<schedule::Program> forward_only;
  MessageMetaCache known;
  std::vector<std::set<std::uint64_t>> known_of_rank;
  FirstInputs first_inputs;                            // used with ShapeMode::Static
  std::map<bool, std::vector<StepNote>> static_notes;  // of the last training and evaluation step
  BatchRowOrder row_orders;
  BufferPool pool;
  std::uint64_t steps = 0;
  bool failed = false;
  bool common_fault = false;  // every rank throws the same error
};

const schedule::Program& PipelineSchedule::Impl::program_for(bool train) {
  if (train) return setup.program;
  if (!forward_only) forward_only = forward_program(setup);
  return *forward_only;
}

// Returns the notes of all ranks. On a device with static shapes, these are the notes of the last step, and
// those of this step are compared when it ends: the host launches the step without waiting for other ranks.
std::vector<StepNote> PipelineSchedule::Impl::agree_on(const StepNote& note, const SplitBatch& split,
                                                       std::optional<NoteExchange>& late_notes) {
  const bool is_static = setup.options.shapes == ShapeMode::Static;
  const auto before = static_notes.find(note.train);
  if (is_static && setup.group.size() > 1 && !setup.stages.front().device().is_cpu() &&
      before != static_notes.end()) {
    if (!note.same_values(before->second[setup.rank.index()]))
      throw first_inputs.local_error(setup, split.batch);
    late_notes.emplace(setup, note);
    return before->second;
  }
  std::vector<StepNote> notes = exchange_notes(setup, note);
  common_fault = true;
  check_row_orders(setup, notes);
  common_fault = false;
  check_static(notes, split.batch);
  if (is_static) first_inputs.keep(split.batch, split.rows.size());
  return notes;
}

void PipelineSchedule::Impl::check_late(const std::vector<StepNote>& notes,
                                        const std::vector<StepNote>& expected) const {
  for (std::size_t rank = 0; rank < notes.size(); ++rank) {
    if (notes[rank].same_values(expected[rank])) continue;
    throw ShapeError(str_cat("the inputs of rank ", setup.group.global_rank(static_cast<int>(rank)).value,
                             " changed after the first step, and this pipeline's shapes are static"),
                     {}, "use ShapeMode::Inferred, which allows other shapes");
  }
}

void PipelineSchedule::Impl::check_static(const std::vector<StepNote>& notes, const StepBatch& batch) {
  if (setup.options.shapes != ShapeMode::Static || known.empty()) return;
  for (std::size_t m = 0; m < notes.front().signatures.size(); ++m) {
    for (std::size_t rank = 0; rank < notes.size(); ++rank) {
      if (known_of_rank[rank].contains(notes[rank].signatures[m])) continue;
      common_fault = true;
      throw first_inputs.error(setup, batch, MicrobatchId(static_cast<std::int64_t>(m)));
    }
  }
}

StepShapes PipelineSchedule::Impl::shapes_of(const std::vector<StepNote>& notes, bool train) const {
  StepShapes shapes;
  shapes.may_vary = setup.options.shapes == ShapeMode::Dynamic;
  const std::size_t microbatches = notes.front().signatures.size();
  for (std::size_t m = 0; m < microbatches; ++m) {
    Signature all;
    all.add(train ? std::uint64_t{1} : std::uint64_t{0});  // without gradients, message metadata differs
    for (const StepNote& note : notes) all.add(note.signatures[m]);
    shapes.signatures.push_back(all.value());
    shapes.sends_meta.push_back(shapes.may_vary || !known.knows(all.value()));
  }
  return shapes;
}

template <class Input>
StepResult PipelineSchedule::Impl::run(const Input& input, bool train) {
  common_fault = false;
  SplitBatch split = split_batch(setup, input, train);
  const StepNote note{steps, train, split.signatures, split.rows, row_order_code(split.row_order)};
  std::optional<NoteExchange> late_notes;
  const std::vector<StepNote> notes = agree_on(note, split, late_notes);
  const value::RowOrder& row_order = row_orders.find(setup, notes, split.row_order);
  const StepShapes shapes = shapes_of(notes, train);
  const auto& rows = notes[setup.rank_of(StageId(0)).index()].rows;
  std::vector<double> weights;
  const bool local_loss =
      !setup.options.loss_needs_target && setup.options.loss && setup.local(setup.last_stage());
  if (!split.batch.targets.empty() || local_loss)
    weights = setup.options.reduction.initial_gradients(rows, split.batch.targets, input.loss_denominator);
  split.batch.initial_gradients = weights;
  if (!setup.options.scale_grads) {
    for (double& gradient : split.batch.initial_gradients) gradient = gradient == 0 ? 0 : 1;
  }

  const schedule::Program& program = program_for(train);
  Step step(setup, program, std::move(split.batch), shapes, known, pool, steps,
            input.return_outputs.value_or(setup.options.return_outputs));
  if (train && program.has_backward()) {
    shared.begin_step();
    try {
      step.run(input.measure_memory);
      shared.end_step();
    } catch (...) {
      shared.abandon_step();
      throw;
    }
  } else {
    const at::NoGradGuard no_grad;
    step.run(input.measure_memory);
  }
  if (late_notes) check_late(late_notes->finish(), notes);
  StepResult result = result_of(setup, program, step, weights, {row_order, rows}, input.wait);
  if (train && program.has_backward()) {
    if (setup.options.input_grads) return_input_grads(setup, step.input_grads, input, result);
    add_input_grads(step.input_grads);
  }
  if (!shapes.may_vary) known.merge(std::move(step).learned(), shapes.signatures);
  static_notes[train] = notes;
  for (std::size_t rank = 0; rank < notes.size(); ++rank)
    known_of_rank[rank].insert(notes[rank].signatures.begin(), notes[rank].signatures.end());
  pool.trim();
  return result;
}

template <class Input>
StepResult PipelineSchedule::Impl::step(const Input& input) {
  if (failed) {
    throw UsageError("an earlier step of this pipeline failed", {.rank = setup.rank},
                     "rebuild the world and construct a new pipeline");
  }
  // Every rank throws this error itself, so the pipeline stays usable and no rank needs a report.
  if (setup.program.has_backward() && !setup.has_loss) {
    throw UsageError(
        "a step of " + setup.program.name() + " runs a backward pass and needs a loss",
        {.rank = setup.rank, .stage = setup.last_stage()},
        "set PipelineOptions::loss on the rank of the last stage; to run forward only, call eval "
        "or use a ForwardOnly schedule");
  }
  common_fault = false;
  try {
    const auto run_step = [&] {
      if (!at::GradMode::is_enabled() && setup.program.has_backward()) {
        throw UsageError("step needs gradients, but gradient mode is disabled", {.rank = setup.rank},
                         "call eval, or call step outside of no-grad mode");
      }
      return run(input, true);
    };
    StepResult result = run_and_report(setup.group, run_step, common_fault);
    ++steps;
    return result;
  } catch (...) {
    failed = setup.group.size() > 1;
    throw;
  }
}

template <class Input>
StepResult PipelineSchedule::Impl::eval(const Input& input) {
  common_fault = false;
  const auto run_eval = [&] {
    std::optional<EvalMode> mode;
    if (!input.keep_mode) mode.emplace(setup.stages);
    return run(input, false);
  };
  return run_and_report(setup.group, run_eval, common_fault);
}

std::string_view to_string(ShapeMode mode) {
  switch (mode) {
    case ShapeMode::Inferred:
      return "inferred";
    case ShapeMode::Static:
      return "static";
    case ShapeMode::Dynamic:
      return "dynamic";
  }
  return "";
}

PipelineSchedule::PipelineSchedule(const StageList& stages, std::string_view name, int microbatches,
                                   PipelineOptions options)
    : PipelineSchedule(stages, schedule::parse_schedule_kind(name), microbatches, std::move(options)) {}

namespace {

// If construction fails on one rank, the error must reach the ranks that wait in compare_setups.
template <class Make>
auto make_and_report(const std::vector<PipelineStage>& stages, Make&& make) {
  return stages.empty() ? make() : run_and_report(stages.front().group(), make);
}

}  // namespace

PipelineSchedule::PipelineSchedule(const StageList& stages, schedule::ScheduleKind kind, int microbatches,
                                   PipelineOptions options)
    : impl_(make_and_report(stages.get(), [&] {
        schedule::Program program = program_of(kind, stages.get(), microbatches, options);
        return std::make_unique<Impl>(make_setup(stages.get(), std::move(program), std::move(options)));
      })) {}

PipelineSchedule::PipelineSchedule(const StageList& stages, const schedule::Schedule& schedule,
                                   PipelineOptions options)
    : impl_(make_and_report(stages.get(), [&] {
        schedule::Program program = program_of(schedule, stages.get(), options);
        return std::make_unique<Impl>(make_setup(stages.get(), std::move(program), std::move(options)));
      })) {}

PipelineSchedule::PipelineSchedule(const StageList& stages, schedule::Program program,
                                   PipelineOptions options)
    : impl_(make_and_report(stages.get(), [&] {
        return std::make_unique<Impl>(make_setup(stages.get(), std::move(program), std::move(options)));
      })) {}

PipelineSchedule::PipelineSchedule(PipelineSchedule&&) noexcept = default;
PipelineSchedule& PipelineSchedule::operator=(PipelineSchedule&&) noexcept = default;
PipelineSchedule::~PipelineSchedule() = default;

StepResult PipelineSchedule::step(value::Args args, c10::IValue target, const StepOptions& options) {
  return impl_->step(UnsplitBatch{options, std::move(args), std::move(target)});
}
StepResult PipelineSchedule::step_microbatches(const Microbatches& batch) {
  return impl_->step(batch);
}
StepResult PipelineSchedule::eval(value::Args args, c10::IValue target, const StepOptions& options) {
  return impl_->eval(UnsplitBatch{options, std::move(args), std::move(target)});
}
StepResult PipelineSchedule::eval_microbatches(const Microbatches& batch) {
  return impl_->eval(batch);
}

void PipelineSchedule::train(bool on) {
  for (const PipelineStage& stage : impl_->setup.stages) stage.module().train(on);
}

double PipelineSchedule::clip_grad_norm(double max_norm, double norm_type) {
  return run_and_report(impl_->setup.group,
                        [&] { return clip_over_stages(impl_->setup, impl_->shared, max_norm, norm_type); });
}

const schedule::Program& PipelineSchedule::program() const {
  return impl_->setup.program;
}
const std::vector<PipelineStage>& PipelineSchedule::stages() const {
  return impl_->setup.stages;
}
std::uint64_t PipelineSchedule::steps() const {
  return impl_->steps;
}
void PipelineSchedule::set_steps(std::uint64_t steps) {
  impl_->steps = steps;
}

}  // namespace penstock::runtime
