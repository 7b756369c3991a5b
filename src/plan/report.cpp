// Reports on predicted or measured timelines, and the lower bound of the step time.
#include <penstock/plan/simulate.h>

#include <algorithm>
#include <limits>

namespace penstock::plan {

std::uint64_t Simulation::peak_memory() const {
  std::uint64_t peak = 0;
  for (const RankReport& rank : ranks) peak = std::max(peak, rank.peak_memory);
  return peak;
}

std::vector<RankReport> report_ranks(const schedule::Timeline& timeline) {
  const double makespan = timeline.makespan();
  std::vector<RankReport> reports;
  for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
    RankReport report;
    bool any = false;
    for (const schedule::TimedAction& timed : timeline.ranks[r]) {
      if (!timed.action.is_compute()) continue;
      if (!any) report.first = timed.start;
      any = true;
      report.busy += timed.end - timed.start;
      report.last = std::max(report.last, timed.end);
    }
    if (makespan > 0) report.bubble = 1 - report.busy / makespan;
    if (report.last > report.first) report.own_bubble = 1 - report.busy / (report.last - report.first);
    if (r < timeline.memory.size()) {
      for (const schedule::MemorySample& sample : timeline.memory[r]) {
        if (sample.bytes <= report.peak_memory) continue;
        report.peak_memory = sample.bytes;
        report.peak_at = sample.time;
      }
    }
    reports.push_back(report);
  }
  return reports;
}

double lower_bound(const schedule::Placement& placement, int microbatches, const Costs& costs,
                   bool has_backward) {
  check_costs(costs, placement.num_stages(), microbatches);
  const auto stages = static_cast<std::size_t>(placement.num_stages());
  if (stages == 0) return 0;
  const auto forward = [&](std::size_t s) { return costs.stages[s].forward; };
  const auto recompute_time = [&](std::size_t s) { return costs.stages[s].recompute ? forward(s) : 0; };
  // The schedule may or may not split a backward pass, so the bound uses the shorter alternative.
  const auto back = [&](std::size_t s) {
    const StageCosts& stage = costs.stages[s];
    return has_backward ? recompute_time(s) + std::min(stage.input, stage.full_backward()) : 0;
  };
  const auto full_back = [&](std::size_t s) {
    const StageCosts& stage = costs.stages[s];
    return has_backward ? recompute_time(s) + std::min(stage.input + stage.weight, stage.full_backward()) : 0;
  };
  const auto hop = [&](std::size_t a, std::size_t b) {
    const Rank from = placement.stage_to_rank()[a], to = placement.stage_to_rank()[b];
    if (from == to) return 0.0;
    const StageId source(static_cast<int>(a)), target(static_cast<int>(b));
    return costs.link_between(from, to).time(costs.message_bytes(source, target));
  };
  // The time before the first F of a stage, and from its last I until stage 0 finishes.
  std::vector<double> before(stages, 0), after(stages, full_back(0) - back(0));
  for (std::size_t s = 1; s < stages; ++s) {
    before[s] = before[s - 1] + forward(s - 1) + hop(s - 1, s);
    after[s] = has_backward ? after[s - 1] + back(s - 1) + hop(s, s - 1) : 0;
  }
  double bound = before[stages - 1] + forward(stages - 1) + back(stages - 1) + after[stages - 1];
  for (int r = 0; r < placement.ranks(); ++r) {
    double head = std::numeric_limits<double>::infinity(), tail = head, busy = 0, until_last_input = 0;
    for (const StageId stage : placement.stages_of(Rank(r))) {
      const auto s = stage.index();
      head = std::min(head, before[s]);
      tail = std::min(tail, after[s]);
      const double hidden = costs.overlap * forward(s);  // the most that an overlap can hide
      busy += microbatches * (forward(s) + full_back(s) - hidden);
      until_last_input += microbatches * (forward(s) + back(s) - hidden);
    }
    if (busy > 0) bound = std::max({bound, head + busy, head + until_last_input + tail});
  }
  return bound;
}

}  // namespace penstock::plan
