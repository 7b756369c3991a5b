// ZB-V (arXiv 2401.10241, section 6): two stages per rank in a V, backward split into I and W. There is no
// bubble within a rank's own span if F, I and W take equal time and there are at least 2 * ranks - 1
// microbatches. The generator assumes at least that many; missing microbatches become idle slots.
#include "schedule/generators/generators.h"
#include "schedule/generators/table.h"

#include <algorithm>

namespace penstock::schedule::generators {

ActionList zbv(const ScheduleShape& shape, int rank, IdleSlots idle) {
  const int p = shape.ranks;
  const int m = std::max(2 * p - 1, shape.microbatches);
  const int missing = m - shape.microbatches;
  Table table(v_stages(shape, rank), 6 * static_cast<std::size_t>(shape.microbatches), idle,
              rank + 6 * missing);
  table.omit_from(shape.microbatches);
  const auto full = [&](int local) {
    table.input(local);
    table.weight(local);
  };

  table.idle(rank);
  // Warm-up: nF0, then alternating F1 F0, then repeated F1 I1 W1.
  for (int i = 0; i < 2 * (p - rank) - 1; ++i) table.forward(0);
  for (int i = 0; i < rank; ++i) {
    table.forward(1);
    table.forward(0);
  }
  for (int i = 0; i < p - rank; ++i) {
    table.forward(1);
    full(1);
  }
  // Steady: F0 I0 W0 F1 I1 W1.
  while (table.forwards(1) < table.forwards(0) || table.forwards(0) < m) {
    if (table.forwards(0) < m) table.forward(0);
    full(0);
    table.forward(1);
    full(1);
  }
  // Cool-down: alternating I0 I1, then alternating I0 W0, then the remaining W, those of stage 1 first.
  for (int i = 0; i < rank; ++i) {
    table.input(0);
    table.input(1);
  }
  for (int i = 0; i < p - rank; ++i) full(0);
  while (table.weights(1) < table.inputs(1)) table.weight(1);
  while (table.weights(0) < table.inputs(0)) table.weight(0);
  return std::move(table).take_list();
}

}  // namespace penstock::schedule::generators
