// Forward only, for evaluation: each rank runs its forward passes depth first, as Interleaved1F1B does.
#include "schedule/generators/generators.h"
#include "schedule/generators/rounds.h"
#include "schedule/generators/table.h"

namespace penstock::schedule::generators {

ActionList forward_only(const ScheduleShape& shape, int rank) {
  const std::vector<int> order = Rounds(shape).forward_order();
  Table table(looped_stages(shape, rank), static_cast<std::size_t>(rank) + order.size());
  table.idle(rank);
  for (const int local : order) table.forward(local);
  return std::move(table).take_list();
}

}  // namespace penstock::schedule::generators
