// The generators behind make_schedule, one per file.
#pragma once

#include <penstock/schedule/generate.h>

#include <vector>

namespace penstock::schedule::generators {

//! Computes the list of one rank.
using PerRank = ActionList(const ScheduleShape& shape, int rank);
//! Computes the lists of all ranks together.
using FullTable = std::vector<ActionList>(const ScheduleShape& shape);

// One function per row of the table.
#define PENSTOCK_SCHEDULE(kind, schedule, scope, generator, ...) scope generator;
#include <penstock/schedule/schedules.def>

}  // namespace penstock::schedule::generators
