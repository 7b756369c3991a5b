// Generates the cases of the sweep.
#include "runtime/support/sweep.h"

#include <map>
#include <tuple>

namespace penstock::test {

Batches sweep_batches(int ranks) {
  if (ranks <= 2) return {{4, 8}, {6, 13}, {1, 3}};
  return {{ranks * 2, ranks * 4}, {ranks * 2, ranks * 4 + 3}, {2, 5}};
}

std::vector<Case> sweep_cases(int ranks, const Batches& batches) {
  std::vector<Case> all;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    if (!info.has_backward) continue;
    for (const int per_rank : {1, 2, 3}) {
      for (const auto& [microbatches, rows] : batches) {
        const Case test{info.kind, per_rank, microbatches, rows};
        if (legal(test, ranks)) all.push_back(test);
      }
    }
  }
  return all;
}

const DenseRun& sweep_dense(const PipelineModel& model, int stages, const Case& test) {
  static std::map<std::tuple<std::string, int, int, int>, DenseRun> runs;
  const auto key = std::tuple(model.name, stages, test.microbatches, test.rows);
  const auto found = runs.find(key);
  if (found != runs.end()) return found->second;
  return runs.emplace(key, run_dense(model, stages, test.microbatches, test.rows, kSweepSteps, kSweepSeed))
      .first->second;
}

}  // namespace penstock::test
