// Checks of the setup that need no communication, and construction of programs.
#include "runtime/setup/make_setup.h"

#include "base/text.h"
#include "runtime/setup/receive_waits.h"

#include <penstock/base/error.h>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace penstock::runtime {
namespace {

const PipelineStage& first_of(const std::vector<PipelineStage>& stages) {
  if (!stages.empty()) return stages.front();
  throw UsageError("this rank has no stage", {}, "use at most as many ranks as stages");
}

void check_counts(const std::vector<PipelineStage>& stages, int microbatches) {
  const PipelineStage& first = first_of(stages);
  const int ranks = first.group().size();
  if (microbatches < 1) {
    throw UsageError("a pipeline cannot run with " + counted(microbatches, "microbatch"), {},
                     "use at least 1 microbatch");
  }
  if (ranks > first.num_stages()) {
    throw UsageError("there are more ranks than stages: " + counted(ranks, "rank") + ", " +
                         counted(first.num_stages(), "stage"),
                     {}, "use a group with at most as many ranks as stages");
  }
  for (const PipelineStage& stage : stages) {
    if (stage.num_stages() != first.num_stages()) {
      throw UsageError(str_cat("the stages disagree on the number of stages: stage ", first.index().value,
                               " says ", first.num_stages(), ", stage ", stage.index().value, " says ",
                               stage.num_stages()));
    }
    if (stage.device().type() != first.device().type()) {
      throw UsageError(str_cat("the stages are on different kinds of device: stage ", first.index().value,
                               " on ", first.device().str(), ", stage ", stage.index().value, " on ",
                               stage.device().str()));
    }
  }
}

std::vector<schedule::StageEdge> skip_edges(const std::vector<SkipValue>& skips, int stages) {
  std::vector<schedule::StageEdge> edges;
  for (const SkipValue& skip : skips) {
    if (skip.from.value < 0 || skip.from >= skip.to || skip.to.value >= stages) {
      throw UsageError(str_cat("skip value ", quote(skip.name), " cannot go from stage ", skip.from.value,
                               " to stage ", skip.to.value),
                       {}, str_cat("a skip value must go to a later one of the ", stages, " stages"));
    }
    if (skip.to.value == skip.from.value + 1) continue;  // sent with the output
    const schedule::StageEdge edge{skip.from, skip.to};
    if (std::find(edges.begin(), edges.end(), edge) == edges.end()) edges.push_back(edge);
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

schedule::LowerOptions lowering(const PipelineOptions& options, int stages) {
  schedule::LowerOptions lower = options.execution.lowering;
  lower.skips = skip_edges(options.skips, stages);
  if (!options.data_parallel) lower.shard = lower.reduce_grad = false;
  return lower;
}

void index_stages(PipelineSetup& setup) {
  const schedule::Program& program = setup.program;
  const int ranks = setup.group.size();
  if (program.ranks() != ranks) {
    throw UsageError(
        str_cat("the program is for ", counted(program.ranks(), "rank"), ", the group has ", ranks));
  }
  setup.by_index.assign(static_cast<std::size_t>(program.num_stages()), nullptr);
  for (const PipelineStage& stage : setup.stages) {
    const ErrorContext context{.rank = setup.rank, .stage = stage.index()};
    if (stage.num_stages() != program.num_stages()) {
      throw UsageError(str_cat("the stage belongs to a pipeline of ", counted(stage.num_stages(), "stage"),
                               ", but the program has ", program.num_stages()),
                       context);
    }
    if (!setup.local(stage.index())) {
      throw UsageError(str_cat("this schedule places the stage on rank ", setup.rank_of(stage.index()).value),
                       context, "see Placement for which rank holds which stage");
    }
    const PipelineStage*& slot = setup.by_index[stage.index().index()];
    if (slot != nullptr) throw UsageError("the stage is given twice", context);
    slot = &stage;
  }
  for (const StageId index : program.placement().stages_of(setup.rank)) {
    if (setup.stage(index) == nullptr) {
      throw UsageError("a stage that this schedule places on this rank is missing",
                       {.rank = setup.rank, .stage = index});
    }
  }
}

void name_skips(PipelineSetup& setup) {
  const schedule::Wiring& wiring = setup.program.wiring();
  const std::vector<schedule::StageEdge> wanted = skip_edges(setup.options.skips, setup.program.num_stages());
  if (!std::equal(wanted.begin(), wanted.end(), wiring.skips().begin(), wiring.skips().end())) {
    throw UsageError("the skip edges of the program do not match the declared skip values", {},
                     "lower the schedule with the same skips (LowerOptions::skips)");
  }
  setup.edge_skips.resize(static_cast<std::size_t>(wiring.edges()));
  for (const SkipValue& skip : setup.options.skips) {
    auto& names = setup.edge_skips[static_cast<std::size_t>(wiring.find(skip.from, skip.to).value())];
    if (std::find(names.begin(), names.end(), skip.name) != names.end())
      throw UsageError("skip value " + quote(skip.name) + " is declared twice");
    names.push_back(skip.name);
    const PipelineStage* const to = setup.stage(skip.to);
    const auto keywords = to != nullptr ? to->module().keywords() : std::nullopt;
    if (keywords && !keywords->contains(skip.name)) {
      throw UsageError("the stage does not take the keyword argument " + quote(skip.name), {.stage = skip.to},
                       detail::keywords_hint());
    }
  }
}

bool overlaps(const schedule::Program& program, Rank rank) {
  const schedule::ActionList& actions = program.of(rank);
  return std::any_of(actions.begin(), actions.end(), [](const schedule::Action& action) {
    return action.kind() == schedule::ActionKind::Overlap;
  });
}

// Autograd records on which streams the memory of a gradient is used. It cannot do so for the local shard of
// a distributed tensor, so stages with such tensors use one stream.
bool may_use_streams(const std::vector<PipelineStage>& stages) {
  const at::Device device = stages.front().device();
  return !device.is_cpu() && !device.is_meta() &&
         std::all_of(stages.begin(), stages.end(),
                     [](const PipelineStage& stage) { return stage.meshes().empty(); });
}

}  // namespace

schedule::Program program_of(schedule::ScheduleKind kind, const std::vector<PipelineStage>& stages,
                             int microbatches, const PipelineOptions& options) {
  check_counts(stages, microbatches);
  const int ranks = stages.front().group().size();
  const int all = stages.front().num_stages();
  if (all % ranks != 0) {
    throw UsageError("the built-in schedules need the same number of stages on every rank: " +
                         counted(all, "stage") + ", " + counted(ranks, "rank"),
                     {}, "use a multiple of the number of ranks, or a custom schedule table");
  }
  return program_of(make_compact_schedule(kind, {ranks, all / ranks, microbatches}), stages, options);
}

schedule::Program program_of(const schedule::Schedule& schedule, const std::vector<PipelineStage>& stages,
                             const PipelineOptions& options) {
  check_counts(stages, schedule.microbatches);
  return make_program(schedule, stages.front().group().send_mode(), lowering(options, schedule.num_stages()));
}

schedule::Program forward_program(const PipelineSetup& setup) {
  if (!setup.program.has_backward()) return setup.program;
  schedule::Schedule schedule = compute_only(setup.program.draft());
  for (schedule::ActionList& list : schedule.ranks) {
    schedule::ActionList forwards;
    for (const schedule::Action& action : list) {
      for_each_part(action, [&](const schedule::Action& part) {
        if (part.kind() == schedule::ActionKind::Forward) forwards.push_back(part);
      });
    }
    list = std::move(forwards);
  }
  schedule::Program program =
      make_program(schedule, setup.program.send_mode(), lowering(setup.options, schedule.num_stages()));
  check_waits_at_receives(program);
  return program;
}

PipelineSetup make_setup(std::vector<PipelineStage> stages, schedule::Program program,
                         PipelineOptions options) {
  check_counts(stages, program.microbatches());
  std::sort(stages.begin(), stages.end(),
            [](const PipelineStage& a, const PipelineStage& b) { return a.index() < b.index(); });
  const comm::Group given = stages.front().group();
  // The caller may have validated the program for the send mode of another transport.
  if (program.send_mode() != given.send_mode())
    program = schedule::Program::validated(program.draft(), given.send_mode());
  PipelineSetup setup{std::move(stages), std::move(program), std::move(options), given, Rank(given.rank())};
  index_stages(setup);
  name_skips(setup);
  if (may_use_streams(setup.stages) && overlaps(setup.program, setup.rank)) {
    const at::Device device = setup.stages.front().device();
    const c10::impl::VirtualGuardImpl devices(device.type());
    const c10::Stream first = devices.getStreamFromGlobalPool(device);
    setup.overlap_streams = std::array{first, devices.getStreamFromGlobalPool(device)};
    // Gradients of one parameter come from both streams. Autograd then synchronizes them, and would warn.
    at::globalContext().setWarnOnAccumulateGradStreamMismatch(false);
  }
  check_waits_at_receives(setup.program);
  return setup;
}

}  // namespace penstock::runtime
