// Schedules with controllable memory (arXiv 2405.15362). A building block consists of the passes of one
// microbatch over a V of two stages per rank and repeats every six slots. The number of microbatches in
// flight is the lifetime of a microbatch on a rank divided by the period, so the slopes of the block
// determine the memory.
#pragma once

#include "schedule/generators/generators.h"

#include <array>
#include <vector>

namespace penstock::schedule::generators {

//! The four passes of a microbatch over the V: F of stage 0 down the ranks, F of stage 1 up, I of stage 1
//! down, I of stage 0 up. Slopes: slots from one rank to the next. Waits: additional slots at the three
//! turns, so that no rank has two passes in the same slot of the period. About (sum of the slopes) * ranks /
//! 6 stage microbatches are in flight per rank, equal on all ranks if forward0 + input0 == forward1 + input1.
struct Block {
  int forward0, forward1, input1, input0;
  std::array<int, 3> waits;
};

std::vector<ActionList> repeat_block(const ScheduleShape& shape, const Block& block, IdleSlots idle);

}  // namespace penstock::schedule::generators
