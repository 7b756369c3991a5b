// What a rank holds over time, from when its actions ran.
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/schedule/timeline.h>

#include <span>
#include <vector>

namespace penstock {

//! `timed` is in program order: at one moment, what ends there frees before what starts there takes.
std::vector<MemorySample> memory_over_time(std::span<const TimedAction> timed,
                                           const std::vector<StageId>& stages, const Costs& costs,
                                           bool has_backward);

}  // namespace penstock
