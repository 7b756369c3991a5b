// `Auto`: searches for the fastest schedule for given costs. It builds many orders by list scheduling,
// improves the best along their critical paths, and compares the result with every named schedule that fits.
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/schedule.h>

#include <cstdint>
#include <optional>
#include <string>

namespace penstock::plan {

//! Limits for a generated schedule.
struct AutoOptions {
  std::optional<std::uint64_t> memory_cap{};  //!< bytes per rank, including resident ones
  schedule::SendMode send_mode =
      schedule::SendMode::Buffered;  //!< send mode of the transport, for the comparison
  int effort = 1;                    //!< 0: no improvement; search time is proportional to it
};

//! A named schedule and its predicted step time.
struct NamedTime {
  std::string name;
  double step_time = 0;
};

//! A generated schedule and its predicted step time.
struct AutoResult {
  schedule::Schedule schedule;
  double step_time = 0;
  std::optional<NamedTime> best_named;  //!< the fastest named schedule that fits; nullopt if none fits
  double lower_bound = 0;               //!< of the step time, over the placements that were tried
};

//! The number of stages is that of `costs` and must be a multiple of the number of ranks. Throws a
//! ScheduleError if no schedule fits under the memory cap.
AutoResult make_auto_schedule(int ranks, int microbatches, const Costs& costs,
                              const AutoOptions& options = {});

}  // namespace penstock::plan
