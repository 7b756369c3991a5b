// Pass: moves the transfers, so that lists that are safe only with buffered sends (or not at all) become safe
// in every send mode. Computations and stage actions keep their order. If these can run on their own, a safe
// order of transfers exists, and send-recv finds it.
#include <penstock/schedule/lower.h>

#include <utility>

namespace penstock::schedule {

Draft reorder(Draft draft, const LowerOptions& options) {
  for (ActionList& list : draft.ranks) {
    std::erase_if(list, [](const Action& action) { return action.is_transfer(); });
  }
  return add_send_recv(std::move(draft), options);
}

}  // namespace penstock::schedule
