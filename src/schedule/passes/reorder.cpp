// Pass: places the transfers anew, so that lists that are safe only where sends are buffered (or not at all)
// become safe in every mode. Computations and chores keep their order; if those alone can run, a safe order
// of transfers exists, and send-recv finds it.
#include <penstock/schedule/lower.h>

#include <utility>

namespace penstock {

Draft reorder(Draft draft, const LowerOptions& options) {
  for (ActionList& list : draft.ranks) {
    std::erase_if(list, [](const Action& action) { return action.is_transfer(); });
  }
  return add_send_recv(std::move(draft), options);
}

}  // namespace penstock
