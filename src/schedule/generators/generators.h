// The generators behind make_schedule, one per file.
#pragma once

#include <penstock/schedule/generate.h>

#include <vector>

namespace penstock::schedule::generators {

//! Whether lists contain an idle slot for each slot in which a rank waits. Their number grows with ranks^2.
enum class IdleSlots { Keep, Omit };

//! Computes the list of one rank.
using PerRank = ActionList(const ScheduleShape& shape, int rank, IdleSlots idle);
//! Computes the lists of all ranks together.
using FullTable = std::vector<ActionList>(const ScheduleShape& shape, IdleSlots idle);

// One function per row of the table.
#define PENSTOCK_SCHEDULE(kind, schedule, scope, generator, ...) scope generator;
#include <penstock/schedule/schedules.def>

}  // namespace penstock::schedule::generators
