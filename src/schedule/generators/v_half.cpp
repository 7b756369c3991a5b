// V-Half (arXiv 2405.15362): at most (ranks + 2) / 2 microbatches in flight on every rank, half of what
// 1F1B's first rank keeps.
#include "schedule/generators/building_block.h"
#include "schedule/generators/generators.h"

namespace penstock::generators {

std::vector<ActionList> v_half(const ScheduleShape& shape) {
  // Of the waits that keep passes apart (20 of 216 do), these hold the least and then take the least time.
  const bool even = shape.ranks % 2 == 0;
  const std::array<int, 3> waits = even ? std::array{3, 0, 4} : std::array{1, 0, 0};
  return repeat_block(shape, {.forward0 = 2, .forward1 = 1, .input1 = 2, .input0 = 1, .waits = waits});
}

}  // namespace penstock::generators
