// `Auto`: a schedule made for the costs at hand. It builds many orders by list scheduling, improves the best
// one along its critical path, and compares it with every named schedule that fits; the fastest wins.
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/schedule.h>

#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

struct AutoOptions {
  std::optional<std::uint64_t> memory_cap;  //!< bytes of each rank, resident ones included
  SendMode mode = SendMode::Buffered;       //!< of the transport, for the comparison
  int effort = 1;                           //!< 0: no improvement; larger: longer search, in proportion
};

struct AutoResult {
  Schedule schedule;
  double step_time = 0;
  std::string best_named;      //!< the fastest named schedule that fits; empty if none does
  double best_named_time = 0;  //!< infinite if none fits
  double lower_bound = 0;      //!< over the placements that were tried
};

//! The costs say how many stages there are; they must be a multiple of the ranks. A ScheduleError if not even
//! one microbatch at a time fits under the cap.
AutoResult make_auto_schedule(int ranks, int microbatches, const Costs& costs,
                              const AutoOptions& options = {});

}  // namespace penstock
