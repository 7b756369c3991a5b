// What the stages of a rank cost, from a measured timeline: the planner's and the simulator's input.
#pragma once

#include <penstock/schedule/timeline.h>

#include <map>

namespace penstock {

//! Mean seconds of each kind of computation; 0 where the timeline has none.
struct StageProfile {
  double forward = 0;
  double backward = 0;
  double backward_input = 0;
  double backward_weight = 0;
};

//! By stage. The first computation of a kind is left out where there are others: it pays for memory and
//! caches. Waiting for values is not counted.
std::map<StageId, StageProfile> profile_stages(const Timeline& timeline);

}  // namespace penstock
