// The list of schedules, look-up by name, the checks of counts, and the way to each generator.
#include "schedule/generators/align.h"
#include "schedule/generators/generators.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>
#include <penstock/schedule/generate.h>

#include <algorithm>
#include <array>

namespace penstock {
namespace {

using enum PlacementStyle;
using K = ScheduleKind;

// kind, name, summary, placement, default stages a rank, only stages a rank, I and W, backward, local
constexpr std::array infos{
    ScheduleInfo{K::GPipe, "GPipe", "all forwards, then all backwards", Loop, 1, 1, false, true, true},
    ScheduleInfo{K::OneFOneB, "1F1B", "one forward, one backward in turn", Loop, 1, 1, false, true, true},
    ScheduleInfo{K::Interleaved1F1B, "Interleaved1F1B", "1F1B over several stages a rank, depth first", Loop,
                 1, std::nullopt, false, true, true},
    ScheduleInfo{K::LoopedBFS, "LoopedBFS", "all microbatches through a stage before the next, breadth first",
                 Loop, 1, std::nullopt, false, true, true},
    ScheduleInfo{K::InterleavedZeroBubble, "InterleavedZeroBubble", "Interleaved1F1B with the backward split",
                 Loop, 1, std::nullopt, true, true, false},
    ScheduleInfo{K::ZBVZeroBubble, "ZBVZeroBubble", "two stages a rank in a V, no bubble at equal costs", V,
                 2, 2, true, true, true},
    ScheduleInfo{K::DualPipeV, "DualPipeV", "two stages a rank in a V, forwards overlap backwards", V, 2, 2,
                 true, true, true},
    ScheduleInfo{K::ForwardOnly, "ForwardOnly", "forwards only, for evaluation", Loop, 1, std::nullopt, false,
                 false, true},
    ScheduleInfo{K::ZB1P, "ZB1P", "split backward, 1F1B's memory, a third of its bubble", Loop, 1, 1, true,
                 true, true},
    ScheduleInfo{K::ZB2P, "ZB2P", "split backward, twice 1F1B's memory, no bubble at equal costs", Loop, 1, 1,
                 true, true, true},
    ScheduleInfo{K::VHalf, "V-Half", "two stages a rank in a V, about half of 1F1B's memory", V, 2, 2, true,
                 true, false},
    ScheduleInfo{K::VMin, "V-Min", "two stages a rank in a V, about a third of 1F1B's memory", V, 2, 2, true,
                 true, false},
};

void check_count(const ScheduleInfo& info, const char* what, int count, int least, int most) {
  if (count >= least && count <= most) return;
  throw UsageError(std::string(info.name) + " cannot have " + std::to_string(count) + " " + what, {},
                   "use " + std::to_string(count < least ? least : most));
}

ActionList local_rank(ScheduleKind kind, const ScheduleShape& shape, int rank) {
  switch (kind) {
    case K::GPipe:
      return generators::gpipe(shape, rank);
    case K::OneFOneB:
      return generators::one_f_one_b(shape, rank);
    case K::Interleaved1F1B:
      return generators::interleaved_1f1b(shape, rank);
    case K::LoopedBFS:
      return generators::looped_bfs(shape, rank);
    case K::ZBVZeroBubble:
      return generators::zbv(shape, rank);
    case K::DualPipeV:
      return generators::dual_pipe_v(shape, rank);
    case K::ForwardOnly:
      return generators::forward_only(shape, rank);
    case K::ZB1P:
      return generators::zb1p(shape, rank);
    case K::ZB2P:
      return generators::zb2p(shape, rank);
    case K::InterleavedZeroBubble:
    case K::VHalf:
    case K::VMin:
      break;
  }
  return {};
}

std::vector<ActionList> all_ranks(ScheduleKind kind, const ScheduleShape& shape) {
  if (kind == K::InterleavedZeroBubble) return generators::interleaved_zero_bubble(shape);
  if (kind == K::VHalf) return generators::v_half(shape);
  if (kind == K::VMin) return generators::v_min(shape);
  std::vector<ActionList> lists;
  lists.reserve(static_cast<std::size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) lists.push_back(local_rank(kind, shape, rank));
  return lists;
}

}  // namespace

std::span<const ScheduleInfo> schedule_infos() {
  return infos;
}

const ScheduleInfo& info_of(ScheduleKind kind) {
  return *std::find_if(infos.begin(), infos.end(),
                       [&](const ScheduleInfo& info) { return info.kind == kind; });
}

std::string_view schedule_name(ScheduleKind kind) {
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
  const std::string near = nearest(name, names);
  throw UsageError(
      "unknown schedule " + quote(name) + "; known are " + join(names, ", "), {},
      near.empty() ? "use one of the known names; case does not count" : "did you mean " + near + "?");
}

void check_shape(ScheduleKind kind, const ScheduleShape& shape) {
  const ScheduleInfo& info = info_of(kind);
  check_count(info, "ranks", shape.ranks, 1, max_stages);
  if (info.only_stages_per_rank && shape.stages_per_rank != *info.only_stages_per_rank) {
    const std::string only = std::to_string(*info.only_stages_per_rank);
    throw UsageError(std::string(info.name) + " has exactly " + only + (only == "1" ? " stage" : " stages") +
                         " a rank, not " + std::to_string(shape.stages_per_rank),
                     {},
                     "use " + only + (only == "1" ? ", or Interleaved1F1B for several stages a rank" : ""));
  }
  check_count(info, "stages a rank", shape.stages_per_rank, 1, max_stages / shape.ranks);
  check_count(info, "microbatches", shape.microbatches, 1, max_microbatches);
  if (kind == ScheduleKind::DualPipeV && shape.microbatches < shape.stages()) {
    throw UsageError("DualPipeV needs at least as many microbatches as stages, and has " +
                         std::to_string(shape.microbatches) + " for " + std::to_string(shape.stages()),
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
    throw UsageError("there is no rank " + std::to_string(rank.value) + " of " + std::to_string(shape.ranks));
  }
  if (info_of(kind).local) return local_rank(kind, shape, rank.value);
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

}  // namespace penstock
