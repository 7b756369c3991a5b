// Interleaved 1F1B with the backward pass split into I and W (ZB1P of arXiv 2401.10241 with several stages
// per rank): half the warm-up of Interleaved1F1B; the W of a microbatch runs `rank` backward passes after its
// I.
#include "schedule/generators/align.h"
#include "schedule/generators/generators.h"
#include "schedule/generators/rounds.h"
#include "schedule/generators/table.h"

#include <algorithm>

namespace penstock::schedule::generators {
namespace {

ActionList order_of(const ScheduleShape& shape, const Rounds& rounds, int rank, IdleSlots idle) {
  const std::vector<int> forwards = rounds.forward_order();
  const std::vector<int> backwards = rounds.backward_order();
  const int total = static_cast<int>(forwards.size());
  const int hops_to_last = shape.ranks - 1 - rank;
  const int warmup = std::min((shape.stages_per_rank - 1) * rounds.largest() + hops_to_last, total);
  Table table(looped_stages(shape, rank), 3 * forwards.size(), idle, rank + hops_to_last);

  table.idle(rank);
  for (int i = 0; i < warmup; ++i) table.forward(forwards[static_cast<std::size_t>(i)]);
  if (warmup > 0) table.idle(hops_to_last);
  int weights = 0;
  for (int i = 0; i < total; ++i) {
    if (warmup + i < total) table.forward(forwards[static_cast<std::size_t>(warmup + i)]);
    table.input(backwards[static_cast<std::size_t>(i)]);
    if (i >= rank) table.weight(backwards[static_cast<std::size_t>(weights++)]);
  }
  while (weights < total) table.weight(backwards[static_cast<std::size_t>(weights++)]);
  return std::move(table).take_list();
}

}  // namespace

std::vector<ActionList> interleaved_zero_bubble(const ScheduleShape& shape, IdleSlots idle) {
  const Rounds rounds(shape);
  std::vector<ActionList> orders;
  orders.reserve(static_cast<std::size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) orders.push_back(order_of(shape, rounds, rank, idle));
  if (idle == IdleSlots::Omit) return orders;
  // Inserts idle slots before forward passes whose input is not ready yet. (Not before I, as in
  // torch.distributed.)
  return align(orders, Wiring(shape.num_stages()), {shape.microbatches, AlignBy::Forwards});
}

}  // namespace penstock::schedule::generators
