// A pipeline and its steps.
#include "runtime/agreement.h"
#include "runtime/cut_batch.h"
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

}  // namespace

struct PipelineSchedule::Content {
  explicit Content(PipelineSetup&& made) : setup(own_group(std::move(made))), shared(setup) {
    known_of_rank.resize(static_cast<std::size_t>(setup.group.size()));
    warm_up(setup);
  }

  // Only pipelines that agree get that far.
  static PipelineSetup own_group(PipelineSetup&& made) {
    compare_setups(made);
    made.keywords = all_keywords(made);
    if (made.group.size() > 1) made.group = *made.group.split(0, made.group.rank());
    return std::move(made);
  }

  StepResult run(const StepInput& input, bool train);
  StepShapes shapes_of(const std::vector<StepNote>& notes);
  const Program& program_for(bool train);

  PipelineSetup setup;
  SharedParameters shared;
  std::optional<Program> forward_only;
  FormBook known;
  std::vector<std::set<std::uint64_t>> known_of_rank;
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

StepShapes PipelineSchedule::Content::shapes_of(const std::vector<StepNote>& notes) {
  StepShapes shapes;
  shapes.may_vary = setup.options.shapes == ShapeMode::Dynamic;
  const std::size_t microbatches = notes.front().signatures.size();
  for (std::size_t m = 0; m < microbatches; ++m) {
    Signature all;
    for (const StepNote& note : notes) all.add(note.signatures[m]);
    shapes.signatures.push_back(all.value());
    shapes.forms_travel.push_back(shapes.may_vary || !known.knows(all.value()));
    if (setup.options.shapes != ShapeMode::Static || known.empty() || known.knows(all.value())) continue;
    std::string who;
    for (std::size_t rank = 0; rank < notes.size(); ++rank) {
      if (!known_of_rank[rank].contains(notes[rank].signatures[m])) who += " " + std::to_string(rank);
    }
    common_fault = true;
    throw ShapeError(
        "the shapes of the batch changed, and this pipeline's are static (inputs of rank" + who + ")",
        {.microbatch = MicrobatchId(static_cast<std::int64_t>(m))},
        "use ShapeMode::Inferred, which allows it");
  }
  return shapes;
}

StepResult PipelineSchedule::Content::run(const StepInput& input, bool train) {
  CutBatch cut = cut_batch(setup, input, train);
  const std::vector<StepNote> notes = exchange_notes(setup, {steps, train, cut.signatures, cut.rows});
  const StepShapes shapes = shapes_of(notes);
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
  Step step(setup, program, std::move(cut.batch), shapes, known, pool, steps);
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
  StepResult result = result_of(setup, program, step, input, shares);
  if (!shapes.may_vary) known.merge(std::move(step).learnt(), shapes.signatures);
  for (std::size_t rank = 0; rank < notes.size(); ++rank)
    known_of_rank[rank].insert(notes[rank].signatures.begin(), notes[rank].signatures.end());
  pool.trim();
  return result;
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
  Content& content = *content_;
  if (content.failed) {
    throw UsageError("an earlier step of this pipeline failed", {.rank = content.setup.rank},
                     "rebuild the world and make a new pipeline");
  }
  try {
    const auto run = [&] {
      if (!at::GradMode::is_enabled() && content.setup.program.has_backward()) {
        throw UsageError("step needs gradients, and they are switched off here", {.rank = content.setup.rank},
                         "call eval, or leave the no-grad scope");
      }
      return content.run(input, true);
    };
    StepResult result = telling(content.setup.group, run, content.common_fault);
    ++content.steps;
    return result;
  } catch (...) {
    content.failed = content.setup.group.size() > 1;
    throw;
  }
}

StepResult PipelineSchedule::step(Args args, c10::IValue target, Kwargs kwargs) {
  return step(StepInput{std::move(args), std::move(kwargs), std::move(target)});
}

StepResult PipelineSchedule::eval(const StepInput& input) {
  return telling(
      content_->setup.group, [&] { return content_->run(input, false); }, content_->common_fault);
}

StepResult PipelineSchedule::eval(Args args, c10::IValue target, Kwargs kwargs) {
  return eval(StepInput{std::move(args), std::move(kwargs), std::move(target)});
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
