// The program of a request's source with its costs.
#pragma once

#include "api/request.h"

#include <penstock/plan/auto_schedule.h>
#include <penstock/plan/costs.h>
#include <penstock/schedule/program.h>

#include <optional>

namespace penstock::playground {

struct Pipeline {
  schedule::Schedule table;  //!< computations only
  schedule::Program program;
  plan::Costs costs;
  std::optional<plan::AutoResult> found;  //!< if the source is `Auto`
};

//! Generates or reads the schedule, lowers it if it has only computations, and validates it for the send
//! mode.
Pipeline make_pipeline(const Request& request);

}  // namespace penstock::playground
