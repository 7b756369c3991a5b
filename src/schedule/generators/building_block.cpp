// Lays out the repeated blocks and fills the free slots with W.
#include "schedule/generators/building_block.h"

#include "schedule/generators/align.h"
#include "schedule/generators/table.h"

#include <array>

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
  const int m = shape.microbatches;
  Table table(v_stages(shape, rank), static_cast<std::size_t>(6 * m));
  std::vector<int> pending;  // local stages with a pending W, oldest first
  std::size_t done = 0;
  const int end = offsets[3] + kPeriod * m;
  for (int slot = 0; slot < end; ++slot) {
    const auto due = [&](int pass) {
      const int since = slot - offsets[static_cast<std::size_t>(pass)];
      return since >= 0 && since % kPeriod == 0 && since / kPeriod < m;
    };
    if (due(0)) {
      table.forward(0);
    } else if (due(1)) {
      table.forward(1);
    } else if (due(2)) {
      table.input(1);
      pending.push_back(1);
    } else if (due(3)) {
      table.input(0);
      pending.push_back(0);
    } else if (done < pending.size()) {
      table.weight(pending[done++]);
    }
  }
  while (done < pending.size()) table.weight(pending[done++]);
  return std::move(table).take_list();
}

}  // namespace

std::vector<ActionList> repeat_block(const ScheduleShape& shape, const Block& block) {
  std::vector<ActionList> orders;
  orders.reserve(static_cast<std::size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    orders.push_back(unroll(shape, rank, offsets_of(rank, shape.ranks, block)));
  }
  return align(orders, Wiring(shape.num_stages()), {shape.microbatches, AlignBy::Everything});
}

}  // namespace penstock::schedule::generators
