// V-Half (arXiv 2405.15362): at most (ranks + 2) / 2 microbatches in flight on every rank, about half of
// those on the first rank of 1F1B.
#include "schedule/generators/building_block.h"
#include "schedule/generators/generators.h"

namespace penstock::schedule::generators {

std::vector<ActionList> v_half(const ScheduleShape& shape, IdleSlots idle) {
  // 20 of 216 combinations of waits avoid collisions; this one uses the least memory, then the least time.
  const bool even = shape.ranks % 2 == 0;
  const std::array<int, 3> waits = even ? std::array{3, 0, 4} : std::array{1, 0, 0};
  return repeat_block(shape, {.forward0 = 2, .forward1 = 1, .input1 = 2, .input0 = 1, .waits = waits}, idle);
}

}  // namespace penstock::schedule::generators
