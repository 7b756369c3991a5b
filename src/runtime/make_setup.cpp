// The checks at set-up that one rank can make alone, and the programs.
#include "runtime/make_setup.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>

#include <algorithm>

namespace penstock {
namespace {

std::string count(int n, const char* what) {
  const std::string word(what);
  const char* const plural = word.ends_with("h") ? "es" : "s";
  return std::to_string(n) + " " + word + (n == 1 ? "" : plural);
}

SendMode send_mode(const Group& group) {
  return group.backend() == "nccl" ? SendMode::Ordered : SendMode::Buffered;
}

const PipelineStage& first_of(const std::vector<PipelineStage>& stages) {
  if (!stages.empty()) return stages.front();
  throw UsageError("this rank has no stage", {}, "a pipeline may have no more ranks than stages");
}

void check_counts(const std::vector<PipelineStage>& stages, int microbatches) {
  const PipelineStage& first = first_of(stages);
  const int ranks = first.group().size();
  if (microbatches < 1) {
    throw UsageError("a step of " + count(microbatches, "microbatch") + " has nothing to do", {},
                     "give at least 1 microbatch");
  }
  if (ranks > first.num_stages()) {
    throw UsageError("there are more ranks than stages: " + count(ranks, "rank") + ", " +
                         count(first.num_stages(), "stage"),
                     {}, "give the pipeline a group of at most as many ranks as it has stages");
  }
  for (const PipelineStage& stage : stages) {
    if (stage.num_stages() != first.num_stages()) {
      throw UsageError("the stages disagree on how many there are: stage " +
                       std::to_string(first.index().value) + " says " + std::to_string(first.num_stages()) +
                       ", stage " + std::to_string(stage.index().value) + " says " +
                       std::to_string(stage.num_stages()));
    }
    if (stage.device().type() != first.device().type()) {
      throw UsageError("the stages are on different kinds of device: stage " +
                       std::to_string(first.index().value) + " on " + first.device().str() + ", stage " +
                       std::to_string(stage.index().value) + " on " + stage.device().str());
    }
  }
}

std::vector<StageEdge> skip_edges(const std::vector<SkipValue>& skips, int stages) {
  std::vector<StageEdge> edges;
  for (const SkipValue& skip : skips) {
    if (skip.from.value < 0 || skip.from >= skip.to || skip.to.value >= stages) {
      throw UsageError("skip value " + quote(skip.name) + " cannot go from stage " +
                           std::to_string(skip.from.value) + " to stage " + std::to_string(skip.to.value),
                       {}, "skip values go to a later stage of the " + std::to_string(stages));
    }
    if (skip.to.value == skip.from.value + 1) continue;  // travels with the output
    const StageEdge edge{skip.from, skip.to};
    if (std::find(edges.begin(), edges.end(), edge) == edges.end()) edges.push_back(edge);
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

LowerOptions lowering(const PipelineOptions& options, int stages) {
  LowerOptions lower = options.lowering;
  lower.skips = skip_edges(options.skips, stages);
  if (!options.data_parallel) lower.shard = lower.reduce_grad = false;
  return lower;
}

void place_stages(PipelineSetup& setup) {
  const Program& program = setup.program;
  const int ranks = setup.group.size();
  if (program.ranks() != ranks) {
    throw UsageError("the program is for " + count(program.ranks(), "rank") + ", the group has " +
                     std::to_string(ranks));
  }
  setup.by_index.assign(static_cast<std::size_t>(program.stages()), nullptr);
  for (const PipelineStage& stage : setup.stages) {
    const ErrorContext context{.rank = setup.rank, .stage = stage.index()};
    if (stage.num_stages() != program.stages()) {
      throw UsageError("the stage is one of " + std::to_string(stage.num_stages()) + ", the program has " +
                           std::to_string(program.stages()),
                       context);
    }
    if (!setup.local(stage.index())) {
      throw UsageError(
          "this schedule places the stage on rank " + std::to_string(setup.rank_of(stage.index()).value),
          context, "Placement says which rank holds which stage");
    }
    const PipelineStage*& place = setup.by_index[static_cast<std::size_t>(stage.index().value)];
    if (place != nullptr) throw UsageError("the stage is given twice", context);
    place = &stage;
  }
  for (const StageId index : program.placement().stages_of(setup.rank)) {
    if (setup.stage(index) == nullptr) {
      throw UsageError("a stage that this schedule places on this rank is missing",
                       {.rank = setup.rank, .stage = index});
    }
  }
}

void name_skips(PipelineSetup& setup) {
  const Wiring& wiring = setup.program.wiring();
  const std::vector<StageEdge> wanted = skip_edges(setup.options.skips, setup.program.stages());
  if (!std::equal(wanted.begin(), wanted.end(), wiring.skips().begin(), wiring.skips().end())) {
    throw UsageError("the program's skip edges are not those of the declared skip values", {},
                     "lower the schedule with the same skips (LowerOptions::skips)");
  }
  setup.edge_skips.resize(static_cast<std::size_t>(wiring.edges()));
  for (const SkipValue& skip : setup.options.skips) {
    auto& names = setup.edge_skips[static_cast<std::size_t>(wiring.find(skip.from, skip.to))];
    if (std::find(names.begin(), names.end(), skip.name) != names.end())
      throw UsageError("skip value " + quote(skip.name) + " is declared twice");
    names.push_back(skip.name);
    const PipelineStage* const to = setup.stage(skip.to);
    const auto keywords = to != nullptr ? to->module().keywords() : std::nullopt;
    if (keywords && !keywords->contains(skip.name)) {
      throw UsageError("the stage takes no keyword argument " + quote(skip.name), {.stage = skip.to},
                       detail::keywords_hint());
    }
  }
}

}  // namespace

Program program_of(ScheduleKind kind, const std::vector<PipelineStage>& stages, int microbatches,
                   const PipelineOptions& options) {
  check_counts(stages, microbatches);
  const int ranks = stages.front().group().size();
  const int all = stages.front().num_stages();
  if (all % ranks != 0) {
    throw UsageError("the built-in schedules need the same number of stages on every rank: " +
                         count(all, "stage") + ", " + count(ranks, "rank"),
                     {}, "use a multiple of the ranks, or a table of your own");
  }
  return program_of(make_schedule(kind, {ranks, all / ranks, microbatches}), stages, options);
}

Program program_of(const Schedule& schedule, const std::vector<PipelineStage>& stages,
                   const PipelineOptions& options) {
  check_counts(stages, schedule.microbatches);
  return make_program(schedule, send_mode(stages.front().group()), lowering(options, schedule.stages()));
}

Program forward_program(const PipelineSetup& setup) {
  if (!setup.program.has_backward()) return setup.program;
  Schedule schedule = compute_only(setup.program.draft());
  for (ActionList& list : schedule.ranks) {
    ActionList forwards;
    for (const Action& action : list) {
      for_each_part(action, [&](const Action& part) {
        if (part.kind() == ActionKind::Forward) forwards.push_back(part);
      });
    }
    list = std::move(forwards);
  }
  return make_program(schedule, setup.program.mode(), lowering(setup.options, schedule.stages()));
}

PipelineSetup make_setup(std::vector<PipelineStage> stages, Program program, PipelineOptions options) {
  check_counts(stages, program.microbatches());
  std::sort(stages.begin(), stages.end(),
            [](const PipelineStage& a, const PipelineStage& b) { return a.index() < b.index(); });
  const Group given = stages.front().group();
  PipelineSetup setup{std::move(stages), std::move(program), std::move(options), given, Rank(given.rank())};
  place_stages(setup);
  name_skips(setup);
  return setup;
}

}  // namespace penstock
