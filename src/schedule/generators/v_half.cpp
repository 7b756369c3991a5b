// V-Half (arXiv 2405.15362): about (ranks + 2) / 2 microbatches in flight on every rank, half of what 1F1B's
// first rank keeps.
#include "schedule/generators/building_block.h"
#include "schedule/generators/generators.h"

namespace penstock::generators {

std::vector<ActionList> v_half(const ScheduleShape& shape) {
  return repeat_block(shape, {.forward0 = 2, .forward1 = 1, .input1 = 2, .input0 = 1});
}

}  // namespace penstock::generators
