// From a schedule's name and counts to its table. Each kind has a file of its own in src/schedule/generators.
#pragma once

#include <penstock/schedule/schedule.h>
#include <penstock/schedule/wiring.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

enum class ScheduleKind {
  GPipe,
  OneFOneB,
  Interleaved1F1B,
  LoopedBFS,
  InterleavedZeroBubble,
  ZBVZeroBubble,
  DualPipeV,
  ForwardOnly,
  ZB1P,
  ZB2P,
  VHalf,
  VMin,
};

struct ScheduleShape {
  int ranks = 1;
  int stages_per_rank = 1;
  int microbatches = 1;

  int stages() const { return ranks * stages_per_rank; }
};

//! What is known of a kind without building a table.
struct ScheduleInfo {
  ScheduleKind kind;
  std::string_view name;     //!< the reference's where it has one: `1F1B`
  std::string_view summary;  //!< one line
  PlacementStyle placement;
  int default_stages_per_rank;
  std::optional<int> only_stages_per_rank;  //!< where the rule is made for exactly that many
  bool splits_backward;                     //!< has I and W
  bool has_backward;
  bool local;  //!< a rank's table follows from its number alone
};

std::span<const ScheduleInfo> schedule_infos();
const ScheduleInfo& info_of(ScheduleKind kind);
std::string_view schedule_name(ScheduleKind kind);
std::vector<std::string> schedule_names();

//! Case does not count; a UsageError lists the known names.
ScheduleKind parse_schedule_kind(std::string_view name);

//! A UsageError says which count the kind cannot have, and the nearest that it can.
void check_shape(ScheduleKind kind, const ScheduleShape& shape);

Schedule make_schedule(ScheduleKind kind, const ScheduleShape& shape);
Schedule make_schedule(std::string_view name, const ScheduleShape& shape);

//! One rank's list. Where the kind is local, the others' are not built.
ActionList make_rank_schedule(ScheduleKind kind, const ScheduleShape& shape, Rank rank);

//! The same orders on a common clock of one slot an action, with idle slots where a rank would wait: what a
//! diagram shows. (The tables of GPipe and 1F1B come without idle slots, others with some, as the reference's
//! do.)
Schedule with_idle_slots(const Schedule& schedule, const std::vector<StageEdge>& skips = {});

}  // namespace penstock
