// Generates a schedule from its name and counts. src/schedule/generators has one file per schedule.
#pragma once

#include <penstock/schedule/schedule.h>
#include <penstock/schedule/wiring.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::schedule {

//! The built-in schedules; schedules.def lists them.
enum class ScheduleKind {
#define PENSTOCK_SCHEDULE(kind, ...) kind,
#include <penstock/schedule/schedules.def>
};

//! The counts from which a schedule is generated.
struct ScheduleShape {
  int ranks = 1;
  int stages_per_rank = 1;
  int microbatches = 1;

  int num_stages() const { return ranks * stages_per_rank; }
};

//! Properties of a kind of schedule.
struct ScheduleInfo {
  ScheduleKind kind;
  std::string_view name;     //!< the name in torch.distributed if it exists there: `1F1B`
  std::string_view summary;  //!< one line
  PlacementStyle placement = PlacementStyle::Loop;
  int default_stages_per_rank = 1;
  std::optional<int> only_stages_per_rank{};  //!< set if the generator supports only this number
  bool splits_backward = false;               //!< uses I and W
  bool has_backward = true;
};

//! All kinds, in the order of the enum.
std::vector<ScheduleInfo> schedule_infos();
//! The properties of one kind.
const ScheduleInfo& info_of(ScheduleKind kind);
//! Whether the list of one rank is generated without those of the other ranks, so that its cost does not grow
//! with the number of ranks.
bool generates_single_rank(ScheduleKind kind);
std::string_view to_string(ScheduleKind kind);
//! The names of all kinds, in the order of the enum.
std::vector<std::string> schedule_names();

//! Case-insensitive. Throws a UsageError that lists the known names.
ScheduleKind parse_schedule_kind(std::string_view name);

//! Throws UsageError if the kind does not support a count; the hint gives the nearest supported one.
void check_shape(ScheduleKind kind, const ScheduleShape& shape);

//! Generates the table of all ranks. Throws UsageError if `check_shape` does, or if the name is unknown.
Schedule make_schedule(ScheduleKind kind, const ScheduleShape& shape);
Schedule make_schedule(std::string_view name, const ScheduleShape& shape);
//! The same without idle slots, which programs do not need. With few microbatches, the number of idle slots
//! grows with the square of the ranks.
Schedule make_compact_schedule(ScheduleKind kind, const ScheduleShape& shape);

//! Generates the list of one rank. Generates the other lists only if the kind requires it. Throws a
//! UsageError as `make_schedule` does, or if there is no such rank.
ActionList make_rank_schedule(ScheduleKind kind, const ScheduleShape& shape, Rank rank);

//! Aligns the lists on a common clock of one slot per action and inserts idle slots where a rank waits, as a
//! diagram shows them. (Generated tables follow torch.distributed: those of GPipe and 1F1B have no idle
//! slots, others have some.)
Schedule with_idle_slots(const Schedule& schedule, const std::vector<StageEdge>& skips = {});

}  // namespace penstock::schedule
