// Lays out the repeated blocks and fills the free slots with W.
#include "schedule/generators/building_block.h"

#include "schedule/generators/align.h"
#include "schedule/generators/table.h"

#include <algorithm>
#include <array>
#include <deque>

namespace penstock::schedule::generators {
namespace {

constexpr int kPeriod = 6;  // F, I and W of two stages, one slot each

// Slots of microbatch 0 on a rank: F0, F1, I1, I0.
using Offsets = std::array<int, 4>;

Offsets offsets_of(int rank, int ranks, const Block& block) {
  const int down = rank;
  const int up = ranks - 1 - rank;
  const int first_f1 = block.forward0 * (ranks - 1) + 1 + block.waits[0];             // on the last rank
  const int first_i1 = first_f1 + block.forward1 * (ranks - 1) + 1 + block.waits[1];  // on rank 0
  const int first_i0 = first_i1 + block.input1 * (ranks - 1) + 1 + block.waits[2];    // on the last rank
  return {block.forward0 * down, first_f1 + block.forward1 * up, first_i1 + block.input1 * down,
          first_i0 + block.input0 * up};
}

ActionList unroll(const ScheduleShape& shape, int rank, const Offsets& offsets) {
  struct Pass {
    int slot;
    int which;  // index in `Offsets`
  };
  std::vector<Pass> passes;  // no two in the same slot
  passes.reserve(4 * static_cast<std::size_t>(shape.microbatches));
  for (int i = 0; i < shape.microbatches; ++i) {
    for (int which = 0; which < 4; ++which)
      passes.push_back({offsets[static_cast<std::size_t>(which)] + kPeriod * i, which});
  }
  std::sort(passes.begin(), passes.end(), [](const Pass& a, const Pass& b) { return a.slot < b.slot; });

  Table table(v_stages(shape, rank), 6 * static_cast<std::size_t>(shape.microbatches));
  std::deque<int> pending;  // local stages with a pending W, oldest first
  int slot = 0;             // the first that is free
  for (const Pass& pass : passes) {
    for (; slot < pass.slot && !pending.empty(); ++slot) {
      table.weight(pending.front());
      pending.pop_front();
    }
    slot = pass.slot + 1;
    const int local = pass.which == 0 || pass.which == 3 ? 0 : 1;
    if (pass.which < 2) {
      table.forward(local);
    } else {
      table.input(local);
      pending.push_back(local);
    }
  }
  for (const int local : pending) table.weight(local);
  return std::move(table).take_list();
}

}  // namespace

std::vector<ActionList> repeat_block(const ScheduleShape& shape, const Block& block, IdleSlots idle) {
  std::vector<ActionList> orders;
  orders.reserve(static_cast<std::size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    orders.push_back(unroll(shape, rank, offsets_of(rank, shape.ranks, block)));
  }
  if (idle == IdleSlots::Omit) return orders;
  return align(orders, Wiring(shape.num_stages()), {shape.microbatches, AlignBy::Everything});
}

}  // namespace penstock::schedule::generators
