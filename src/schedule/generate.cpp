// The list of schedules, lookup by name, checks of counts, and dispatch to the generators.
#include "schedule/generators/align.h"
#include "schedule/generators/generators.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>
#include <penstock/schedule/generate.h>

#include <array>

namespace penstock::schedule {
namespace {

using enum PlacementStyle;
using generators::PerRank;
using generators::WholeTable;

//! Exactly one of the two is set.
struct Generator {
  PerRank* per_rank = nullptr;
  WholeTable* whole_table = nullptr;

  constexpr Generator(PerRank* function) : per_rank(function) {}        // NOLINT: a row names a function
  constexpr Generator(WholeTable* function) : whole_table(function) {}  // NOLINT: a row names a function
};

constexpr std::array infos{
#define PENSTOCK_SCHEDULE(kind, schedule, generator, scope, name, summary, placement, stages, only, splits, \
                          backward)                                                                         \
  ScheduleInfo{ScheduleKind::kind,                                                                          \
               name,                                                                                        \
               summary,                                                                                     \
               placement,                                                                                   \
               stages,                                                                                      \
               only,                                                                                        \
               splits,                                                                                      \
               backward,                                                                                    \
               Generator(generators::generator).per_rank != nullptr},
#include <penstock/schedule/schedules.def>
};

constexpr std::array functions{
#define PENSTOCK_SCHEDULE(kind, schedule, generator, ...) Generator(generators::generator),
#include <penstock/schedule/schedules.def>
};

void check_count(const ScheduleInfo& info, const char* what, int count, int least, int most) {
  if (count >= least && count <= most) return;
  throw UsageError(std::string(info.name) + " does not support " + std::to_string(count) + " " + what, {},
                   "use " + std::to_string(count < least ? least : most));
}

const Generator& generator_of(ScheduleKind kind) {
  return functions[static_cast<std::size_t>(kind)];
}

std::vector<ActionList> all_ranks(ScheduleKind kind, const ScheduleShape& shape) {
  const Generator& generator = generator_of(kind);
  if (generator.whole_table != nullptr) return generator.whole_table(shape);
  std::vector<ActionList> lists;
  lists.reserve(static_cast<std::size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) lists.push_back(generator.per_rank(shape, rank));
  return lists;
}

}  // namespace

std::span<const ScheduleInfo> schedule_infos() {
  return infos;
}

const ScheduleInfo& info_of(ScheduleKind kind) {
  return infos[static_cast<std::size_t>(kind)];
}

std::string_view to_string(ScheduleKind kind) {
  return info_of(kind).name;
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  names.reserve(infos.size());
  for (const ScheduleInfo& info : infos) names.emplace_back(info.name);
  return names;
}

ScheduleKind parse_schedule_kind(std::string_view name) {
  for (const ScheduleInfo& info : infos) {
    if (to_lower(info.name) == to_lower(name)) return info.kind;
  }
  const std::vector<std::string> names = schedule_names();
  throw UsageError("unknown schedule " + quote(name) + "; known schedules: " + join(names, ", "), {},
                   did_you_mean(name, names, "use one of the known names (case-insensitive)"));
}

void check_shape(ScheduleKind kind, const ScheduleShape& shape) {
  const ScheduleInfo& info = info_of(kind);
  check_count(info, "ranks", shape.ranks, 1, max_stages);
  if (info.only_stages_per_rank && shape.stages_per_rank != *info.only_stages_per_rank) {
    const std::string only = std::to_string(*info.only_stages_per_rank);
    throw UsageError(
        std::string(info.name) + " requires exactly " + only + (only == "1" ? " stage" : " stages") +
            " per rank, not " + std::to_string(shape.stages_per_rank),
        {}, "use " + only + (only == "1" ? ", or Interleaved1F1B for several stages per rank" : ""));
  }
  check_count(info, "stages per rank", shape.stages_per_rank, 1, max_stages / shape.ranks);
  check_count(info, "microbatches", shape.microbatches, 1, max_microbatches);
  if (kind == ScheduleKind::DualPipeV && shape.microbatches < shape.stages()) {
    throw UsageError("DualPipeV needs at least as many microbatches as stages; microbatches: " +
                         std::to_string(shape.microbatches) + ", stages: " + std::to_string(shape.stages()),
                     {}, "use " + std::to_string(shape.stages()) + " microbatches");
  }
}

Schedule make_schedule(ScheduleKind kind, const ScheduleShape& shape) {
  check_shape(kind, shape);
  const ScheduleInfo& info = info_of(kind);
  return {std::string(info.name), Placement::make(shape.ranks, shape.stages(), info.placement),
          shape.microbatches, all_ranks(kind, shape)};
}

Schedule make_schedule(std::string_view name, const ScheduleShape& shape) {
  return make_schedule(parse_schedule_kind(name), shape);
}

ActionList make_rank_schedule(ScheduleKind kind, const ScheduleShape& shape, Rank rank) {
  check_shape(kind, shape);
  if (rank.value < 0 || rank.value >= shape.ranks) {
    throw UsageError("invalid rank " + std::to_string(rank.value) +
                     "; number of ranks: " + std::to_string(shape.ranks));
  }
  if (PerRank* const per_rank = generator_of(kind).per_rank) return per_rank(shape, rank.value);
  return std::move(all_ranks(kind, shape)[static_cast<std::size_t>(rank.value)]);
}

Schedule with_idle_slots(const Schedule& schedule, const std::vector<StageEdge>& skips) {
  Schedule aligned{schedule.name, schedule.placement, schedule.microbatches, {}};
  std::vector<ActionList> orders = schedule.ranks;
  for (ActionList& order : orders)
    std::erase_if(order, [](const Action& action) { return action.is_idle(); });
  aligned.ranks = generators::align(orders, Wiring(schedule.stages(), skips),
                                    {schedule.microbatches, generators::AlignBy::Everything});
  return aligned;
}

}  // namespace penstock::schedule
