// The rules behind make_schedule, one a file. A local rule gives one rank's table; the others give all at
// once.
#pragma once

#include <penstock/schedule/generate.h>

#include <vector>

namespace penstock::generators {

ActionList gpipe(const ScheduleShape& shape, int rank);
ActionList one_f_one_b(const ScheduleShape& shape, int rank);
ActionList interleaved_1f1b(const ScheduleShape& shape, int rank);
ActionList looped_bfs(const ScheduleShape& shape, int rank);
std::vector<ActionList> interleaved_zero_bubble(const ScheduleShape& shape);
ActionList zbv(const ScheduleShape& shape, int rank);
ActionList dual_pipe_v(const ScheduleShape& shape, int rank);
ActionList forward_only(const ScheduleShape& shape, int rank);
ActionList zb1p(const ScheduleShape& shape, int rank);
ActionList zb2p(const ScheduleShape& shape, int rank);
std::vector<ActionList> v_half(const ScheduleShape& shape);
std::vector<ActionList> v_min(const ScheduleShape& shape);

}  // namespace penstock::generators
