// Measures of a timeline.
#include <penstock/schedule/timeline.h>

#include <algorithm>

namespace penstock::schedule {

double Timeline::makespan() const {
  double end = 0;
  for (const auto& rank : ranks) {
    for (const TimedAction& timed : rank) end = std::max(end, timed.end);
  }
  return end;
}

}  // namespace penstock::schedule
