// V-Min (arXiv 2405.15362): about (ranks + 4) / 3 microbatches in flight on every rank, the least that a V of
// two stages allows: every pass goes on to the next rank in the very next slot.
#include "schedule/generators/building_block.h"
#include "schedule/generators/generators.h"

namespace penstock::generators {

std::vector<ActionList> v_min(const ScheduleShape& shape) {
  return repeat_block(shape, {.forward0 = 1, .forward1 = 1, .input1 = 1, .input0 = 1});
}

}  // namespace penstock::generators
