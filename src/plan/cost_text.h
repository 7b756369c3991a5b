// The text of costs in cost files, which tools/penstock/config/cost_file.h reads.
#pragma once

#include <penstock/plan/costs.h>

#include <string>

namespace penstock::plan {

//! A time, or another number that may be very large or small: `1.250000e-03`.
std::string cost_number(double number);

//! The keys of a `[[stages]]` or `[[layers]]` table, one per line, without those that are neither measured
//! nor estimated. An unset backward time is omitted.
std::string to_toml(const StageCosts& costs);

}  // namespace penstock::plan
