// The JSON of results, for `--json` and the playground: schedules, validations, simulations, plans.
#pragma once

#include "base/json.h"

#include <penstock/plan/planner.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/csv.h>

#include <string>
#include <vector>

namespace penstock::tool {

//! A list with the properties of every named schedule.
void write_schedule_list(JsonWriter& out);

//! The result of a simulation; `bound` is the lower bound of the step time.
void write_simulation(JsonWriter& out, const schedule::Program& program, const plan::Simulation& simulation,
                      double bound);

//! The findings on a schedule file. `problems` are those of reading it; `verdict` is null if it cannot be
//! read.
void write_validation(JsonWriter& out, const schedule::ScheduleFile& file, const Diagnostics& problems,
                      const schedule::Verdict* verdict, bool valid);

//! A list of plans, best first. `train_command` is the command that trains with the first one; it is left out
//! if empty.
void write_plans(JsonWriter& out, const std::vector<plan::Plan>& plans,
                 const std::vector<std::string>& train_command = {});

}  // namespace penstock::tool
