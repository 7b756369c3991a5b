// Names a rank that left the world while others still waited for it.
#include "comm/world/generation.h"

#include "base/log_line.h"

#include <algorithm>

namespace penstock::comm {

void WorldGeneration::report_departed(const std::vector<int>& members, const std::string& op) {
  if (failure.failed() || !departed) return;
  try {
    for (const Rank left : departed()) {
      if (std::find(members.begin(), members.end(), left.value) == members.end()) continue;
      // Another rank may have reported the departure of a rank and then left, too.
      const Failure found = Failure::of_departure(left, rank, op);
      const Failure first = publish ? publish(found) : found;
      if (first.rank != rank) failure.report(first);  // else the monitor reports it
      return;
    }
  } catch (const std::exception& e) {  // the store is down; the caller reports the broken operation
    Log(LogLevel::Info) << "cannot ask which ranks have left: " << e.what();
  }
}

}  // namespace penstock::comm
