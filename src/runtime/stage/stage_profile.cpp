// Mean computation times from a timeline.
#include <penstock/runtime/stage_profile.h>

#include <utility>
#include <vector>

namespace penstock::runtime {
namespace {

double mean_without_first(const std::vector<double>& seconds) {
  if (seconds.empty()) return 0;
  const std::size_t from = seconds.size() > 1 ? 1 : 0;
  double sum = 0;
  for (std::size_t i = from; i < seconds.size(); ++i) sum += seconds[i];
  return sum / static_cast<double>(seconds.size() - from);
}

}  // namespace

std::map<StageId, StageProfile> profile_stages(const schedule::Timeline& timeline) {
  std::map<std::pair<StageId, schedule::ActionKind>, std::vector<double>> seconds;
  for (const auto& list : timeline.ranks) {
    for (const schedule::TimedAction& timed : list) {
      if (!timed.action.is_compute() || timed.action.kind() == schedule::ActionKind::Overlap) continue;
      seconds[{timed.action.stage(), timed.action.kind()}].push_back(timed.end - timed.start);
    }
  }
  std::map<StageId, StageProfile> profiles;
  for (const auto& [key, values] : seconds) {
    StageProfile& profile = profiles[key.first];
    const double mean = mean_without_first(values);
    if (key.second == schedule::ActionKind::Forward) profile.forward = mean;
    if (key.second == schedule::ActionKind::Backward) profile.backward = mean;
    if (key.second == schedule::ActionKind::BackwardInput) profile.backward_input = mean;
    if (key.second == schedule::ActionKind::BackwardWeight) profile.backward_weight = mean;
  }
  return profiles;
}

}  // namespace penstock::runtime
