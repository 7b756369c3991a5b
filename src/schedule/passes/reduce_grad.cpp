// Pass: inserts REDUCE_GRAD right after the last backward (B or W) of a stage, so that memory is freed early.
#include <penstock/schedule/lower.h>

#include <utility>

namespace penstock::schedule {

Draft add_reduce_grad(Draft draft, const LowerOptions&) {
  std::vector<int> done(static_cast<std::size_t>(draft.num_stages()), 0);
  for (ActionList& list : draft.ranks) {
    ActionList result;
    result.reserve(list.size() + 4);
    for (const Action& action : list) {
      result.push_back(action);
      for_each_part(action, [&](const Action& part) {
        if (part.kind() != ActionKind::Backward && part.kind() != ActionKind::BackwardWeight) return;
        int& count = done[part.stage().index()];
        if (++count == draft.microbatches) result.push_back(Action::reduce_grad(part.stage()));
      });
    }
    list = std::move(result);
  }
  return draft;
}

}  // namespace penstock::schedule
