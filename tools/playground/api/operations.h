// The operations of the playground. Each takes a request and throws an Error if it cannot be fulfilled.
#pragma once

#include "api/answer.h"
#include "api/request.h"

namespace penstock::playground {

//! All named schedules with their properties, the kinds of actions with their colors, and the version.
Answer list_schedules(const Request& request);

//! The simulation of the source, as in `penstock simulate --json`, and its boxes. For `Auto`, also the table.
Answer simulate_source(const Request& request);

//! All findings on the text of a schedule file, as in `penstock validate --json`.
Answer validate_file(const Request& request);

//! Plans for the model, as in `penstock plan --json`.
Answer find_plans(const Request& request);

//! The source as a file: `csv`, `lowered`, `svg`, `trace` or `costs`.
Answer export_source(const Request& request);

}  // namespace penstock::playground
