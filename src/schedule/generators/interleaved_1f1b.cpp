// Interleaved 1F1B (arXiv 2104.04473): several stages per rank, assigned round-robin; microbatches run depth
// first in rounds (rounds.h). Warm-up, then alternating forward and backward passes, then the remaining
// backward passes.
#include "schedule/generators/generators.h"
#include "schedule/generators/rounds.h"
#include "schedule/generators/table.h"

#include <algorithm>

namespace penstock::schedule::generators {

ActionList interleaved_1f1b(const ScheduleShape& shape, int rank, IdleSlots idle) {
  const int p = shape.ranks;
  const int v = shape.stages_per_rank;
  const Rounds rounds(shape);
  const std::vector<int> forwards = rounds.forward_order();
  const std::vector<int> backwards = rounds.backward_order();
  const int total = static_cast<int>(forwards.size());

  // The last rank's first backward pass follows its first F of the last stage; each earlier rank adds two
  // slots.
  const int hops_to_last = p - 1 - rank;
  const int warmup = std::min((v - 1) * rounds.largest() + 2 * hops_to_last, total);
  const int first_backward = v * p + 2 * hops_to_last;
  const int wait = std::max(0, first_backward - (rank + warmup));
  Table table(looped_stages(shape, rank), 2 * forwards.size(), idle, rank + wait + warmup);

  table.idle(rank);
  for (int i = 0; i < warmup; ++i) table.forward(forwards[static_cast<std::size_t>(i)]);
  if (warmup > 0) table.idle(wait);
  for (int i = 0; i < total; ++i) {
    if (warmup + i < total) {
      table.forward(forwards[static_cast<std::size_t>(warmup + i)]);
    } else {
      table.idle();  // other ranks still run a forward pass here
    }
    table.backward(backwards[static_cast<std::size_t>(i)]);
  }
  return std::move(table).take_list();
}

}  // namespace penstock::schedule::generators
