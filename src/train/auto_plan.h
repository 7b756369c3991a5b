// `--schedule auto`: a few steps are measured, a schedule is made for what they took, and the run is begun
// with that.
#pragma once

#include "train/assembly.h"

#include <penstock/train/data.h>

#include <string>

namespace penstock::train {

//! The schedule, the same on every rank. No parameter changes.
Schedule plan_schedule(const Mesh& mesh, Model& model, const DataSource& data, const RunOptions& options,
                       Progress& progress);

//! A plan as text, and back.
std::string plan_text(const Schedule& schedule);
Schedule read_plan(const std::string& text);

//! The part of a step's batch that this replica takes, and of that the part number `part`.
Rows rows_of(const RunOptions& options, int replica, std::int64_t part);

}  // namespace penstock::train
