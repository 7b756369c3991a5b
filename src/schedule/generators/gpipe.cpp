// GPipe (arXiv 1811.06965): all forward passes, then all backward passes.
#include "schedule/generators/generators.h"
#include "schedule/generators/table.h"

namespace penstock::schedule::generators {

ActionList gpipe(const ScheduleShape& shape, int rank, IdleSlots) {
  const int m = shape.microbatches;
  Table table({rank}, 2 * static_cast<std::size_t>(m));
  for (int i = 0; i < m; ++i) table.forward(0);
  for (int i = 0; i < m; ++i) table.backward(0);
  return std::move(table).take_list();
}

}  // namespace penstock::schedule::generators
