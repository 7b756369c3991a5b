// V-Min (arXiv 2405.15362): at most (ranks + 4) / 3 microbatches in flight on every rank, the minimum for a V
// of two stages per rank: every pass continues on the next rank in the next slot.
#include "schedule/generators/building_block.h"
#include "schedule/generators/generators.h"

namespace penstock::schedule::generators {

std::vector<ActionList> v_min(const ScheduleShape& shape, IdleSlots idle) {
  // Without waits, two passes fall into the same slot of a rank if and only if `ranks` is a multiple of 3.
  const bool collide = shape.ranks % 3 == 0;
  const std::array<int, 3> waits = collide ? std::array{2, 0, 2} : std::array{0, 0, 0};
  return repeat_block(shape, {.forward0 = 1, .forward1 = 1, .input1 = 1, .input0 = 1, .waits = waits}, idle);
}

}  // namespace penstock::schedule::generators
