// ZB1P, the handcrafted ZB-H1 of arXiv 2401.10241: 1F1B with the backward pass split into I and W; each W
// runs `rank` backward passes after its I. Every rank has as many microbatches in flight as the first rank of
// 1F1B (ranks). The bubble is a third of that of 1F1B at equal costs.
#include "schedule/generators/generators.h"
#include "schedule/generators/table.h"

#include <algorithm>

namespace penstock::schedule::generators {

ActionList zb1p(const ScheduleShape& shape, int rank, IdleSlots idle) {
  const int m = shape.microbatches;
  const int hops_to_last = shape.ranks - 1 - rank;
  const int warmup = std::min(hops_to_last, m);
  Table table({rank}, 3 * static_cast<std::size_t>(m), idle, rank + hops_to_last);

  table.idle(rank);
  for (int i = 0; i < warmup; ++i) table.forward(0);
  table.idle(hops_to_last);
  for (int i = 0; i < m; ++i) {
    if (table.forwards(0) < m) table.forward(0);
    table.input(0);
    if (i >= rank) table.weight(0);
  }
  while (table.weights(0) < m) table.weight(0);
  return std::move(table).take_list();
}

}  // namespace penstock::schedule::generators
