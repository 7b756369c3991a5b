// Counts over lists of actions.
#include <penstock/schedule/schedule.h>

#include <algorithm>

namespace penstock::schedule {

std::size_t slot_count(const std::vector<ActionList>& ranks) {
  std::size_t most = 0;
  for (const ActionList& list : ranks) most = std::max(most, list.size());
  return most;
}

std::size_t action_count(const std::vector<ActionList>& ranks) {
  std::size_t count = 0;
  for (const ActionList& list : ranks) {
    count += static_cast<std::size_t>(
        std::count_if(list.begin(), list.end(), [](const Action& action) { return !action.is_idle(); }));
  }
  return count;
}

bool has_backward(const std::vector<ActionList>& ranks) {
  const auto backward = [](const Action& action) {
    return action.is_compute() && action.kind() != ActionKind::Forward;
  };
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const ActionList& list) { return std::any_of(list.begin(), list.end(), backward); });
}

}  // namespace penstock::schedule
