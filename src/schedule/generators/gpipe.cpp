// GPipe (arXiv 1811.06965): all forwards, then all backwards.
#include "schedule/generators/generators.h"
#include "schedule/generators/table.h"

namespace penstock::generators {

ActionList gpipe(const ScheduleShape& shape, int rank) {
  const int hops_to_last = shape.ranks - 1 - rank;
  const int m = shape.microbatches;
  Table table({rank}, static_cast<std::size_t>(rank + 3 * hops_to_last + 2 * m));
  table.idle(rank);
  for (int i = 0; i < m; ++i) table.forward(0);
  // The last microbatch goes on to the last rank (1 slot a hop) and its backward comes back (2 slots a hop).
  table.idle(3 * hops_to_last);
  for (int i = 0; i < m; ++i) table.backward(0);
  return std::move(table).take_list();
}

}  // namespace penstock::generators
