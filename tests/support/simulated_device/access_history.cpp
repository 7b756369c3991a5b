// The accesses of streams to one block of memory.
#include "access_history.h"

#include <algorithm>

namespace penstock::test::simulated {

std::vector<Access> AccessHistory::add(Access next, const VectorClock& order) {
  std::vector<Access> conflicts;
  for (const Access& earlier : accesses_) {
    const bool overlap = earlier.begin < next.end && next.begin < earlier.end;
    if (overlap && (earlier.write || next.write) && !order.covers(earlier.moment))
      conflicts.push_back(earlier);
  }
  // What is ordered after `next` is also ordered after the accesses that `next` replaces.
  std::erase_if(accesses_, [&](const Access& earlier) {
    const bool inside = next.begin <= earlier.begin && earlier.end <= next.end;
    const bool same_reader = !earlier.write && earlier.moment.stream == next.moment.stream;
    return inside && (next.write || same_reader);
  });
  accesses_.push_back(std::move(next));
  return conflicts;
}

void AccessHistory::on_free(const std::vector<StreamIndex>& ordered) {
  std::erase_if(accesses_, [&](const Access& access) {
    return std::find(ordered.begin(), ordered.end(), access.moment.stream) != ordered.end();
  });
  for (Access& access : accesses_) access.before_free = true;
}

}  // namespace penstock::test::simulated
