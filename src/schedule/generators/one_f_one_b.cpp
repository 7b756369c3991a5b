// 1F1B (PipeDream-Flush, arXiv 2006.09503): ranks - rank forward passes, then alternating backward and
// forward passes, then the remaining backward passes. The order is that of the executor in torch.distributed
// (its table differs and is wrong). At most ranks - rank microbatches are in flight.
#include "schedule/generators/generators.h"
#include "schedule/generators/table.h"

#include <algorithm>

namespace penstock::schedule::generators {

ActionList one_f_one_b(const ScheduleShape& shape, int rank, IdleSlots) {
  const int m = shape.microbatches;
  const int warmup = std::min(m, shape.ranks - rank);
  Table table({rank}, 2 * static_cast<std::size_t>(m));
  for (int i = 0; i < warmup; ++i) table.forward(0);
  for (int i = 0; i < m; ++i) {
    table.backward(0);
    if (table.forwards(0) < m) table.forward(0);
  }
  return std::move(table).take_list();
}

}  // namespace penstock::schedule::generators
