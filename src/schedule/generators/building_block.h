// Schedules of controllable memory (arXiv 2405.15362): a building block, the passes of one microbatch over a
// V of two stages a rank, repeated every six slots. How long a microbatch stays on a rank over the period is
// what the rank keeps in flight, so the block's slopes set the memory.
#pragma once

#include <penstock/schedule/generate.h>

#include <array>
#include <vector>

namespace penstock::generators {

//! The four passes of a microbatch over the V: F of stage 0 down the ranks, F of stage 1 up, I of stage 1
//! down, I of stage 0 up. Slopes: slots from a rank to the next. Waits: further slots at the three turns, so
//! that no rank has two passes in the same slot of the period. A rank holds about (sum of the slopes) * ranks
//! / 6 stages' worth of microbatches, the same on every rank where forward0 + input0 == forward1 + input1.
struct Block {
  int forward0, forward1, input1, input0;
  std::array<int, 3> waits;
};

std::vector<ActionList> repeat_block(const ScheduleShape& shape, const Block& block);

}  // namespace penstock::generators
