// The memory model: computes the memory of a rank over time from the times of its actions.
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/schedule/timeline.h>

#include <span>
#include <vector>

namespace penstock::plan {

//! `timed` must be in program order: at equal times, memory is freed before it is allocated.
std::vector<schedule::MemorySample> memory_over_time(std::span<const schedule::TimedAction> timed,
                                                     const std::vector<StageId>& stages, const Costs& costs,
                                                     bool has_backward);

}  // namespace penstock::plan
