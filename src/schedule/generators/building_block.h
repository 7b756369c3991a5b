// Schedules of controllable memory (arXiv 2405.15362): a building block, the passes of one microbatch over a
// V of two stages a rank, repeated every six slots. How long a microbatch stays on a rank over the period is
// what the rank keeps in flight, so the block's slopes set the memory.
#pragma once

#include <penstock/schedule/generate.h>

#include <vector>

namespace penstock::generators {

//! Slots from a rank to the next for each of the four passes: F of stage 0 (down the ranks), F of stage 1
//! (up), I of stage 1 (down), I of stage 0 (up). A rank holds about (sum of the four) * ranks / 6 stages'
//! worth of microbatches, the same on every rank where forward0 + input0 == forward1 + input1.
struct BlockSlopes {
  int forward0, forward1, input1, input0;
};

std::vector<ActionList> repeat_block(const ScheduleShape& shape, const BlockSlopes& slopes);

}  // namespace penstock::generators
