// Looped breadth first (arXiv 2211.05953): stages are assigned round-robin. All microbatches pass through a
// stage before the next stage of the rank starts; the backward passes run in the opposite order.
#include "schedule/generators/generators.h"
#include "schedule/generators/table.h"

namespace penstock::schedule::generators {

ActionList looped_bfs(const ScheduleShape& shape, int rank, IdleSlots idle) {
  const int v = shape.stages_per_rank;
  const int m = shape.microbatches;
  const int hops_to_last = shape.ranks - 1 - rank;
  ActionList list;
  const auto wait = [&](int slots) {
    if (idle == IdleSlots::Keep) list.resize(list.size() + static_cast<std::size_t>(slots));
  };
  list.reserve(static_cast<std::size_t>(2 * v * m + (idle == IdleSlots::Keep ? rank + 2 * hops_to_last : 0)));
  wait(rank);
  for (int local = 0; local < v; ++local) {
    for (int i = 0; i < m; ++i)
      list.push_back(Action::forward(StageId(rank + local * shape.ranks), MicrobatchId(i)));
  }
  wait(2 * hops_to_last);
  for (int local = v - 1; local >= 0; --local) {
    for (int i = m - 1; i >= 0; --i)
      list.push_back(Action::backward(StageId(rank + local * shape.ranks), MicrobatchId(i)));
  }
  return list;
}

}  // namespace penstock::schedule::generators
