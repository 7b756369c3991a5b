// DualPipeV (the V-shaped half of DualPipe, arXiv 2412.19437): two stages per rank in a V. In the steady
// phase a forward pass of one stage overlaps a backward pass of the other. The phases have the names of the
// authors' code: nF0, nF0F1, nI1W1F1, nF0B1F1B0, nB1F1B0, nB1B0, nWB0, nW.
#include "schedule/generators/generators.h"
#include "schedule/generators/table.h"

#include <deque>

namespace penstock::schedule::generators {
namespace {

// The table and the FIFO queue of pending W of both stages.
struct Phases {
  Table table;
  std::deque<int> waiting;

  void input(int local) {
    table.input(local);
    waiting.push_back(local);
  }
  void input_or_full(int local, bool split) {
    if (split) {
      input(local);
    } else {
      table.backward(local);
    }
  }
  void weight() {
    if (waiting.empty()) return;
    table.weight(waiting.front());
    waiting.pop_front();
  }
};

}  // namespace

ActionList dual_pipe_v(const ScheduleShape& shape, int rank, IdleSlots) {
  const int p = shape.ranks;
  const int m = shape.microbatches;
  const int hops_to_last = p - 1 - rank;
  Phases phases{Table(v_stages(shape, rank), static_cast<std::size_t>(6 * m)), {}};
  Table& table = phases.table;

  for (int i = 0; i < 2 * hops_to_last; ++i) table.forward(0);  // nF0
  for (int i = 0; i < rank + 1; ++i) {                          // nF0F1
    table.forward(0);
    table.forward(1);
  }
  for (int i = 0; i < hops_to_last; ++i) {  // nI1W1F1
    phases.input(1);
    phases.weight();
    table.forward(1);
  }
  for (int i = 0; i < m - 2 * p + rank + 1; ++i) {  // nF0B1F1B0, overlapped
    if (i == 0 && rank == p - 1) {
      table.forward(0);  // not overlapped, so the very first backward starts earlier
      table.backward(1);
    } else {
      table.overlap(0, 1);
    }
    table.overlap(1, 0);
  }
  for (int i = 0; i < hops_to_last; ++i) {  // nB1F1B0
    table.backward(1);
    table.overlap(1, 0);
  }
  bool split = false;                   // the second half of the last backward passes defers its W
  for (int i = 0; i < rank + 1; ++i) {  // nB1B0
    const bool half = i == (rank + 1) / 2;
    if (half && rank % 2 == 1) split = true;
    phases.input_or_full(1, split);
    if (half && rank % 2 == 0) split = true;
    phases.input_or_full(0, split);
  }
  for (int i = 0; i < hops_to_last; ++i) {  // nWB0
    phases.weight();
    phases.input_or_full(0, split);
  }
  for (int i = 0; i < rank + 1; ++i) phases.weight();  // nW
  return std::move(table).take_list();
}

}  // namespace penstock::schedule::generators
