// V-Min (arXiv 2405.15362): at most (ranks + 4) / 3 microbatches in flight on every rank, the least that a V
// of two stages allows: every pass goes on to the next rank in the very next slot.
#include "schedule/generators/building_block.h"
#include "schedule/generators/generators.h"

namespace penstock::generators {

std::vector<ActionList> v_min(const ScheduleShape& shape) {
  // Without waits the passes of a rank meet in one slot exactly where the ranks are a multiple of 3.
  const bool meet = shape.ranks % 3 == 0;
  const std::array<int, 3> waits = meet ? std::array{2, 0, 2} : std::array{0, 0, 0};
  return repeat_block(shape, {.forward0 = 1, .forward1 = 1, .input1 = 1, .input0 = 1, .waits = waits});
}

}  // namespace penstock::generators
