// 1F1B (PipeDream-Flush, arXiv 2006.09503): as many forwards as there are ranks from here to the last, then
// one backward, one forward in turn, then the remaining backwards. The order is that of the reference's
// executor (its table differs and is wrong). At most ranks - rank microbatches are in flight.
#include "schedule/generators/generators.h"
#include "schedule/generators/table.h"

#include <algorithm>

namespace penstock::generators {

ActionList one_f_one_b(const ScheduleShape& shape, int rank) {
  const int p = shape.ranks;
  const int m = shape.microbatches;
  const int warmup = std::min(m, p - rank);
  // One slot an action: the last rank's backward of microbatch j is in slot p + 2j, and one slot later a rank
  // before.
  const int first_backward = 2 * p - 1 - rank;
  Table table({rank}, static_cast<std::size_t>(first_backward + 2 * m - 1));

  table.idle(rank);
  for (int i = 0; i < warmup; ++i) table.forward(0);
  table.idle(first_backward - rank - warmup);
  for (int i = 0; i < m; ++i) {
    table.backward(0);
    if (table.forwards(0) < m) {
      table.forward(0);
    } else if (i + 1 < m) {
      table.idle();
    }
  }
  return std::move(table).take_list();
}

}  // namespace penstock::generators
