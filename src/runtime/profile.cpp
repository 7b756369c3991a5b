// Means over a timeline.
#include <penstock/runtime/profile.h>

#include <utility>
#include <vector>

namespace penstock {
namespace {

double mean_without_first(const std::vector<double>& seconds) {
  if (seconds.empty()) return 0;
  const std::size_t from = seconds.size() > 1 ? 1 : 0;
  double sum = 0;
  for (std::size_t i = from; i < seconds.size(); ++i) sum += seconds[i];
  return sum / static_cast<double>(seconds.size() - from);
}

}  // namespace

std::map<StageId, StageProfile> profile_stages(const Timeline& timeline) {
  std::map<std::pair<StageId, ActionKind>, std::vector<double>> seconds;
  for (const auto& list : timeline.ranks) {
    for (const TimedAction& timed : list) {
      if (!timed.action.is_compute() || timed.action.kind() == ActionKind::Overlap) continue;
      seconds[{timed.action.stage(), timed.action.kind()}].push_back(timed.end - timed.start);
    }
  }
  std::map<StageId, StageProfile> profiles;
  for (const auto& [key, values] : seconds) {
    StageProfile& profile = profiles[key.first];
    const double mean = mean_without_first(values);
    if (key.second == ActionKind::Forward) profile.forward = mean;
    if (key.second == ActionKind::Backward) profile.backward = mean;
    if (key.second == ActionKind::BackwardInput) profile.backward_input = mean;
    if (key.second == ActionKind::BackwardWeight) profile.backward_weight = mean;
  }
  return profiles;
}

}  // namespace penstock
