// Forward only, for evaluation: each rank runs its forward passes depth first, as Interleaved1F1B does.
#include "schedule/generators/generators.h"
#include "schedule/generators/rounds.h"
#include "schedule/generators/table.h"

namespace penstock::schedule::generators {

ActionList forward_only(const ScheduleShape& shape, int rank, IdleSlots idle) {
  const std::vector<int> order = Rounds(shape).forward_order();
  Table table(looped_stages(shape, rank), order.size(), idle, rank);
  table.idle(rank);
  for (const int local : order) table.forward(local);
  return std::move(table).take_list();
}

}  // namespace penstock::schedule::generators
