// Pass: merges an I and its W right after it into a B, which is cheaper where the split brings no advantage.
#include <penstock/schedule/lower.h>

namespace penstock::schedule {

Draft merge_backward(Draft draft, const LowerOptions&) {
  for (ActionList& list : draft.ranks) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Action action = list[i];
      const bool pair = action.kind() == ActionKind::BackwardInput && i + 1 < list.size() &&
                        list[i + 1] == Action::backward_weight(action.stage(), action.microbatch());
      list[kept++] = pair ? Action::backward(action.stage(), action.microbatch()) : action;
      if (pair) ++i;
    }
    list.resize(kept);
  }
  return draft;
}

}  // namespace penstock::schedule
