// Runs all lists in lockstep, slot by slot.
#include "schedule/generators/align.h"

#include "schedule/dependencies.h"

namespace penstock::schedule::generators {

std::vector<ActionList> align(const std::vector<ActionList>& orders, const Wiring& wiring,
                              const AlignOptions& options) {
  const Placement nowhere;
  const ActionContext context{wiring, nowhere, options.microbatches, ProgramLevel::Compute};
  const FactIndex index(wiring, options.microbatches);
  std::vector<int> slot_of(index.size(), -1);  // the slot in which a fact became true
  std::vector<ActionList> result(orders.size());
  std::vector<std::size_t> next(orders.size(), 0);
  for (std::size_t rank = 0; rank < orders.size(); ++rank) result[rank].reserve(orders[rank].size());

  bool progress = true;
  for (int slot = 0; progress; ++slot) {
    progress = false;
    for (std::size_t rank = 0; rank < orders.size(); ++rank) {
      if (next[rank] == orders[rank].size()) continue;
      const Action& action = orders[rank][next[rank]];
      bool ready = true;
      if (options.by == AlignBy::Everything || action.kind() == ActionKind::Forward) {
        for_each_need(action, context, [&](const Fact& fact) {
          const int when = slot_of[index(fact)];
          if (when < 0 || when >= slot) ready = false;
        });
      }
      if (!ready) {
        result[rank].emplace_back();
        continue;
      }
      for_each_yield(action, context, [&](const Fact& fact) { slot_of[index(fact)] = slot; });
      result[rank].push_back(action);
      ++next[rank];
      progress = true;
    }
  }
  for (std::size_t rank = 0; rank < orders.size(); ++rank) {
    if (next[rank] == orders[rank].size()) continue;
    result[rank].pop_back();  // the last slot, in which no rank made progress
    result[rank].insert(result[rank].end(), orders[rank].begin() + static_cast<std::ptrdiff_t>(next[rank]),
                        orders[rank].end());
  }
  return result;
}

}  // namespace penstock::schedule::generators
