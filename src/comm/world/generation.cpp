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
      const Failure found = Failure::of_departure(left, rank, op);
      if (publish) publish(found);
      failure.report(found);
      return;
    }
  } catch (const std::exception& e) {  // the store is down; the caller reports the broken operation
    Log(LogLevel::Info) << "cannot ask which ranks have left: " << e.what();
  }
}

}  // namespace penstock::comm
