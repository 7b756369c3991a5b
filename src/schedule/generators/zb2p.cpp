// ZB2P, the handcrafted ZB-H2 of arXiv 2401.10241: twice the warm-up of ZB1P fills the bubble before the
// first backward, and each W runs `2 * rank` backward passes after its I, which fills the bubble at the end.
// 2 * ranks - 1 microbatches are in flight on every rank. There is no bubble within a rank's own span if F, I
// and W take equal time and there are at least that many microbatches.
#include "schedule/generators/generators.h"
#include "schedule/generators/table.h"

#include <algorithm>

namespace penstock::schedule::generators {

ActionList zb2p(const ScheduleShape& shape, int rank, IdleSlots idle) {
  const int m = shape.microbatches;
  const int hops_to_last = shape.ranks - 1 - rank;
  const int warmup = std::min(2 * hops_to_last + 1, m);
  Table table({rank}, 3 * static_cast<std::size_t>(m), idle, rank);

  table.idle(rank);
  for (int i = 0; i < warmup; ++i) table.forward(0);
  for (int i = 0; i < m; ++i) {
    table.input(0);
    if (i >= 2 * rank) table.weight(0);
    if (table.forwards(0) < m) table.forward(0);
  }
  while (table.weights(0) < m) table.weight(0);
  return std::move(table).take_list();
}

}  // namespace penstock::schedule::generators
