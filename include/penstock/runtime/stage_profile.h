// Computation times per stage, from a measured timeline: input for the planner and the simulator.
#pragma once

#include <penstock/schedule/timeline.h>

#include <map>

namespace penstock::runtime {

//! Mean time in seconds of each kind of computation; 0 if the timeline has none.
struct StageProfile {
  double forward = 0;
  double backward = 0;
  double backward_input = 0;
  double backward_weight = 0;
};

//! Returns the profile of each stage. The first computation of each kind is a warm-up (allocations, caches)
//! and is excluded if there are others. Time spent waiting for values is not counted.
std::map<StageId, StageProfile> profile_stages(const schedule::Timeline& timeline);

}  // namespace penstock::runtime
