// A pipeline and its steps.
#include "runtime/agreement.h"
#include "runtime/cut_batch.h"
#include "runtime/first_inputs.h"
#include "runtime/input_grads.h"
#include "runtime/make_setup.h"
#include "runtime/shared_parameters.h"
#include "runtime/signature.h"
#include "runtime/step_result.h"

#include <penstock/base/error.h>
#include <penstock/runtime/pipeline.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <set>
#include <utility>

namespace penstock {
namespace {

std::string current_cause() {
  try {
    throw;
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

// Runs `body`; if it throws, the other ranks learn why before it goes on, unless they find the same by
// themselves (`common`): told of it, a slower one would raise PeerFailed instead.
template <class Body>
auto telling(const Group& group, Body&& body, const bool& common = false) {
  try {
    return body();
  } catch (...) {
    if (group.size() > 1 && !common) group.fail(current_cause());
    throw;
  }
}

// All stages of a rank in evaluation mode, for as long as this lives.
class EvalMode {
 public:
  explicit EvalMode(const std::vector<PipelineStage>& stages) {
    for (const PipelineStage& stage : stages) restore_.push_back(stage.module().enter_eval());
  }
  ~EvalMode() {
    for (auto restore = restore_.rbegin(); restore != restore_.rend(); ++restore) (*restore)();
  }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  std::vector<std::function<void()>> restore_;
};

}  // namespace

struct PipelineSchedule::Content {
  explicit Content(PipelineSetup&& made) : setup(own_group(std::move(made))), shared(setup) {
    known_of_rank.resize(static_cast<std::size_t>(setup.group.size()));
    warm_up(setup);
  }

  // Only pipelines that agree get that far.
  static PipelineSetup own_group(PipelineSetup&& made) {
    compare_setups(made);
    learn_from_all_ranks(made);
    if (made.group.size() > 1) made.group = *made.group.split(0, made.group.rank());
    return std::move(made);
  }

  // `Input` is StepInput or Microbatches.
  template <class Input>
  StepResult step(const Input& input);
  template <class Input>
  StepResult eval(const Input& input);
  template <class Input>
  StepResult run(const Input& input, bool train);
  void check_static(const std::vector<StepNote>& notes, const StepBatch& batch);
  StepShapes shapes_of(const std::vector<StepNote>& notes, bool train) const;
  const Program& program_for(bool train);

  PipelineSetup setup;
  SharedParameters shared;
  std::optional<Program> forward_only;
  FormBook known;
  std::vector<std::set<std::uint64_t>> known_of_rank;
  FirstInputs first_inputs;  // of static shapes
  BufferPool pool;
  std::uint64_t steps = 0;
  bool failed = false;
  bool common_fault = false;  // every rank throws the same
};

const Program& PipelineSchedule::Content::program_for(bool train) {
  if (train) return setup.program;
  if (!forward_only) forward_only = forward_program(setup);
  return *forward_only;
}

void PipelineSchedule::Content::check_static(const std::vector<StepNote>& notes, const StepBatch& batch) {
  if (setup.options.shapes != ShapeMode::Static || known.empty()) return;
  for (std::size_t m = 0; m < notes.front().signatures.size(); ++m) {
    for (std::size_t rank = 0; rank < notes.size(); ++rank) {
      if (known_of_rank[rank].contains(notes[rank].signatures[m])) continue;
      common_fault = true;
      throw first_inputs.error(setup, batch, MicrobatchId(static_cast<std::int64_t>(m)));
    }
  }
}

StepShapes PipelineSchedule::Content::shapes_of(const std::vector<StepNote>& notes, bool train) const {
  StepShapes shapes;
  shapes.may_vary = setup.options.shapes == ShapeMode::Dynamic;
  const std::size_t microbatches = notes.front().signatures.size();
  for (std::size_t m = 0; m < microbatches; ++m) {
    Signature all;
    all.add(train ? std::uint64_t{1} : std::uint64_t{0});  // without gradients, messages have another form
    for (const StepNote& note : notes) all.add(note.signatures[m]);
    shapes.signatures.push_back(all.value());
    shapes.forms_travel.push_back(shapes.may_vary || !known.knows(all.value()));
  }
  return shapes;
}

template <class Input>
StepResult PipelineSchedule::Content::run(const Input& input, bool train) {
  common_fault = false;
  CutBatch cut = cut_batch(setup, input, train);
  const std::vector<StepNote> notes =
      exchange_notes(setup, {steps, train, cut.signatures, cut.rows, cut.row_order});
  common_fault = true;
  check_row_orders(setup, notes);
  common_fault = false;
  check_static(notes, cut.batch);
  if (setup.options.shapes == ShapeMode::Static) first_inputs.keep(cut.batch, cut.rows.size());
  const StepShapes shapes = shapes_of(notes, train);
  const auto& rows = notes[static_cast<std::size_t>(setup.rank_of(StageId(0)).value)].rows;
  std::vector<double> shares;
  const bool own_loss =
      !setup.options.loss_needs_target && setup.options.loss && setup.local(setup.last_stage());
  if (!cut.batch.targets.empty() || own_loss)
    shares = setup.options.reduction.seeds(rows, cut.batch.targets, input.loss_denominator);
  cut.batch.seeds = shares;
  if (!setup.options.scale_grads) {
    for (double& seed : cut.batch.seeds) seed = seed == 0 ? 0 : 1;
  }

  const Program& program = program_for(train);
  Step step(setup, program, std::move(cut.batch), shapes, known, pool, steps,
            input.return_outputs.value_or(setup.options.return_outputs));
  if (train && program.has_backward()) {
    shared.begin_step();
    try {
      step.run();
      shared.end_step();
    } catch (...) {
      shared.abandon_step();
      throw;
    }
  } else {
    const at::NoGradGuard no_grad;
    step.run();
  }
  StepResult result = result_of(setup, program, step, shares);
  if (train && program.has_backward()) {
    if (setup.options.input_grads) return_input_grads(setup, step.own_grads, input, result);
    add_input_grads(step.own_grads);
  }
  if (!shapes.may_vary) known.merge(std::move(step).learnt(), shapes.signatures);
  for (std::size_t rank = 0; rank < notes.size(); ++rank)
    known_of_rank[rank].insert(notes[rank].signatures.begin(), notes[rank].signatures.end());
  pool.trim();
  return result;
}

template <class Input>
StepResult PipelineSchedule::Content::step(const Input& input) {
  if (failed) {
    throw UsageError("an earlier step of this pipeline failed", {.rank = setup.rank},
                     "rebuild the world and make a new pipeline");
  }
  // Every rank knows it, so nothing has failed and nobody need be told.
  if (setup.program.has_backward() && !setup.has_loss) {
    throw UsageError(
        "a step of " + setup.program.name() + " runs backward and needs a loss",
        {.rank = setup.rank, .stage = setup.last_stage()},
        "give PipelineOptions::loss on the rank of the last stage; to run forward only, call eval "
        "or make a ForwardOnly schedule");
  }
  try {
    const auto run_step = [&] {
      if (!at::GradMode::is_enabled() && setup.program.has_backward()) {
        throw UsageError("step needs gradients, and they are switched off here", {.rank = setup.rank},
                         "call eval, or leave the no-grad scope");
      }
      return run(input, true);
    };
    StepResult result = telling(setup.group, run_step, common_fault);
    ++steps;
    return result;
  } catch (...) {
    failed = setup.group.size() > 1;
    throw;
  }
}

template <class Input>
StepResult PipelineSchedule::Content::eval(const Input& input) {
  const auto run_eval = [&] {
    std::optional<EvalMode> mode;
    if (!input.keep_mode) mode.emplace(setup.stages);
    return run(input, false);
  };
  return telling(setup.group, run_eval, common_fault);
}

PipelineSchedule::PipelineSchedule(std::vector<PipelineStage> stages, std::string_view name, int microbatches,
                                   PipelineOptions options)
    : PipelineSchedule(std::move(stages), parse_schedule_kind(name), microbatches, std::move(options)) {}

namespace {

// A refusal on one rank must reach those that wait for it in the comparison of set-ups.
template <class Make>
auto made_together(const std::vector<PipelineStage>& stages, Make&& make) {
  return stages.empty() ? make() : telling(stages.front().group(), make);
}

}  // namespace

PipelineSchedule::PipelineSchedule(std::vector<PipelineStage> stages, ScheduleKind kind, int microbatches,
                                   PipelineOptions options)
    : content_(made_together(stages, [&] {
        Program program = program_of(kind, stages, microbatches, options);
        return std::make_unique<Content>(make_setup(stages, std::move(program), std::move(options)));
      })) {}

PipelineSchedule::PipelineSchedule(std::vector<PipelineStage> stages, const Schedule& schedule,
                                   PipelineOptions options)
    : content_(made_together(stages, [&] {
        Program program = program_of(schedule, stages, options);
        return std::make_unique<Content>(make_setup(stages, std::move(program), std::move(options)));
      })) {}

PipelineSchedule::PipelineSchedule(std::vector<PipelineStage> stages, Program program,
                                   PipelineOptions options)
    : content_(made_together(stages, [&] {
        return std::make_unique<Content>(make_setup(stages, std::move(program), std::move(options)));
      })) {}

PipelineSchedule::PipelineSchedule(PipelineSchedule&&) noexcept = default;
PipelineSchedule& PipelineSchedule::operator=(PipelineSchedule&&) noexcept = default;
PipelineSchedule::~PipelineSchedule() = default;

StepResult PipelineSchedule::step(const StepInput& input) {
  return content_->step(input);
}
StepResult PipelineSchedule::step_microbatches(const Microbatches& input) {
  return content_->step(input);
}
StepResult PipelineSchedule::eval(const StepInput& input) {
  return content_->eval(input);
}
StepResult PipelineSchedule::eval_microbatches(const Microbatches& input) {
  return content_->eval(input);
}

void PipelineSchedule::train(bool on) {
  for (const PipelineStage& stage : content_->setup.stages) stage.module().train(on);
}

double PipelineSchedule::clip_grad_norm(double max_norm, double norm_type) {
  return telling(content_->setup.group,
                 [&] { return clip_over_stages(content_->setup, content_->shared, max_norm, norm_type); });
}

const Program& PipelineSchedule::program() const {
  return content_->setup.program;
}
const std::vector<PipelineStage>& PipelineSchedule::stages() const {
  return content_->setup.stages;
}
std::uint64_t PipelineSchedule::steps() const {
  return content_->steps;
}
void PipelineSchedule::set_steps(std::uint64_t steps) {
  content_->steps = steps;
}

}  // namespace penstock
