// Distributes the microbatches over max(1, microbatches / ranks) rounds. If they do not divide evenly (which
// torch.distributed rejects), the first rounds get one more.
#include "schedule/generators/rounds.h"

#include <algorithm>
#include <cstddef>

namespace penstock::schedule::generators {

Rounds::Rounds(const ScheduleShape& shape) : stages_per_rank_(shape.stages_per_rank) {
  const int rounds = std::max(1, shape.microbatches / shape.ranks);
  for (int i = 0; i < rounds; ++i) {
    sizes_.push_back(shape.microbatches / rounds + (i < shape.microbatches % rounds ? 1 : 0));
  }
}

std::vector<int> Rounds::forward_order() const {
  std::vector<int> order;
  for (const int size : sizes_) {
    for (int local = 0; local < stages_per_rank_; ++local)
      order.insert(order.end(), static_cast<std::size_t>(size), local);
  }
  return order;
}

std::vector<int> Rounds::backward_order() const {
  std::vector<int> order = forward_order();
  for (int& local : order) local = stages_per_rank_ - 1 - local;
  return order;
}

}  // namespace penstock::schedule::generators
