// The list of schedules, lookup by name, checks of counts, and dispatch to the generators.
#include "base/text.h"
#include "schedule/generators/align.h"
#include "schedule/generators/generators.h"

#include <penstock/base/error.h>
#include <penstock/schedule/generate.h>

#include <array>
#include <variant>

namespace penstock::schedule {
namespace {

using generators::FullTable;
using generators::IdleSlots;
using generators::PerRank;

//! A row of schedules.def.
struct Entry {
  ScheduleInfo info;
  std::variant<PerRank*, FullTable*> generator;
};

constexpr std::array kEntries{
#define PENSTOCK_SCHEDULE(id, class_name, scope, function, ...) \
  Entry{{.kind = ScheduleKind::id, __VA_ARGS__}, &generators::function},
#include <penstock/schedule/schedules.def>
};

const Entry& entry_of(ScheduleKind kind) {
  return kEntries[static_cast<std::size_t>(kind)];
}

void check_count(const ScheduleInfo& info, const char* what, int count, int least, int most) {
  if (count >= least && count <= most) return;
  throw UsageError(str_cat(info.name, " does not support ", count, " ", what), {},
                   count < least ? str_cat("use at least ", least) : str_cat("use at most ", most));
}

std::vector<ActionList> all_ranks(ScheduleKind kind, const ScheduleShape& shape, IdleSlots idle) {
  const Entry& entry = entry_of(kind);
  if (const auto full_table = std::get_if<FullTable*>(&entry.generator)) return (*full_table)(shape, idle);
  PerRank* const per_rank = std::get<PerRank*>(entry.generator);
  std::vector<ActionList> lists;
  lists.reserve(static_cast<std::size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) lists.push_back(per_rank(shape, rank, idle));
  return lists;
}

Schedule make(ScheduleKind kind, const ScheduleShape& shape, IdleSlots idle) {
  check_shape(kind, shape);
  const ScheduleInfo& info = info_of(kind);
  return {std::string(info.name), Placement::make(shape.ranks, shape.num_stages(), info.placement),
          shape.microbatches, all_ranks(kind, shape, idle)};
}

}  // namespace

std::vector<ScheduleInfo> schedule_infos() {
  std::vector<ScheduleInfo> infos;
  infos.reserve(kEntries.size());
  for (const Entry& entry : kEntries) infos.push_back(entry.info);
  return infos;
}

const ScheduleInfo& info_of(ScheduleKind kind) {
  return entry_of(kind).info;
}

bool generates_single_rank(ScheduleKind kind) {
  return std::holds_alternative<PerRank*>(entry_of(kind).generator);
}

std::string_view to_string(ScheduleKind kind) {
  return info_of(kind).name;
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  names.reserve(kEntries.size());
  for (const Entry& entry : kEntries) names.emplace_back(entry.info.name);
  return names;
}

ScheduleKind parse_schedule_kind(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (to_lower(entry.info.name) == to_lower(name)) return entry.info.kind;
  }
  const std::vector<std::string> names = schedule_names();
  throw UsageError("unknown schedule " + quote(name) + "; known schedules: " + join(names, ", "), {},
                   did_you_mean(name, names, "use one of the known names (case-insensitive)"));
}

void check_shape(ScheduleKind kind, const ScheduleShape& shape) {
  const ScheduleInfo& info = info_of(kind);
  check_count(info, "ranks", shape.ranks, 1, kMaxStages);
  if (info.only_stages_per_rank && shape.stages_per_rank != *info.only_stages_per_rank) {
    const int only = *info.only_stages_per_rank;
    throw UsageError(
        str_cat(info.name, " requires exactly ", counted(only, "stage"), " per rank, not ",
                shape.stages_per_rank),
        {}, str_cat("use ", only, (only == 1 ? ", or Interleaved1F1B for several stages per rank" : "")));
  }
  check_count(info, "stages per rank", shape.stages_per_rank, 1, kMaxStages / shape.ranks);
  check_count(info, "microbatches", shape.microbatches, 1, kMaxMicrobatches);
  if (kind == ScheduleKind::DualPipeV && shape.microbatches < shape.num_stages()) {
    throw UsageError(str_cat("DualPipeV needs at least as many microbatches as stages; microbatches: ",
                             shape.microbatches, ", stages: ", shape.num_stages()),
                     {}, str_cat("use ", shape.num_stages(), " microbatches"));
  }
}

Schedule make_schedule(ScheduleKind kind, const ScheduleShape& shape) {
  return make(kind, shape, IdleSlots::Keep);
}

Schedule make_compact_schedule(ScheduleKind kind, const ScheduleShape& shape) {
  return make(kind, shape, IdleSlots::Omit);
}

Schedule make_schedule(std::string_view name, const ScheduleShape& shape) {
  return make_schedule(parse_schedule_kind(name), shape);
}

ActionList make_rank_schedule(ScheduleKind kind, const ScheduleShape& shape, Rank rank) {
  check_shape(kind, shape);
  if (rank.value < 0 || rank.value >= shape.ranks) {
    throw UsageError(str_cat("invalid rank ", rank.value, "; number of ranks: ", shape.ranks));
  }
  if (const auto per_rank = std::get_if<PerRank*>(&entry_of(kind).generator))
    return (*per_rank)(shape, rank.value, IdleSlots::Keep);
  return std::move(all_ranks(kind, shape, IdleSlots::Keep)[rank.index()]);
}

Schedule with_idle_slots(const Schedule& schedule, const std::vector<StageEdge>& skips) {
  Schedule aligned{schedule.name, schedule.placement, schedule.microbatches, {}};
  std::vector<ActionList> orders = schedule.ranks;
  for (ActionList& order : orders)
    std::erase_if(order, [](const Action& action) { return action.is_idle(); });
  aligned.ranks = generators::align(orders, Wiring(schedule.num_stages(), skips),
                                    {schedule.microbatches, generators::AlignBy::Everything});
  return aligned;
}

}  // namespace penstock::schedule
