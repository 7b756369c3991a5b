// Lays out schedules, timelines and simulations as boxes for all renderers.
#include "base/text.h"
#include "view/quantity_text.h"

#include <penstock/view/drawing.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <unordered_set>

namespace penstock::view {
namespace {

constexpr std::size_t kMaxLanes = 4;

struct ActionHash {
  std::size_t operator()(const schedule::Action& action) const {
    const auto kind = static_cast<std::uint64_t>(action.kind());
    const auto stage = static_cast<std::uint64_t>(action.stage().index());
    return std::hash<std::uint64_t>{}(((kind << 16) + stage) << 32 | action.microbatch().index());
  }
};

std::vector<int> chunks(const schedule::Placement& placement) {
  std::vector<int> seen(static_cast<std::size_t>(placement.ranks()), 0), result;
  for (const Rank rank : placement.stage_to_rank()) result.push_back(seen[rank.index()]++);
  return result;
}

void add_compute(std::vector<ActionBox>& row, const schedule::TimedAction& timed) {
  if (timed.action.kind() != schedule::ActionKind::Overlap) {
    row.push_back({timed.action, timed.start, timed.end});
    return;
  }
  row.push_back({timed.action.forward_part(), timed.start, timed.end, BoxPart::TopHalf});
  row.push_back({timed.action.backward_part(), timed.start, timed.end, BoxPart::BottomHalf});
}

//! Assigns each box to the first free lane. Boxes that exceed the maximum number of lanes share the last one.
void find_lanes(std::vector<ActionBox>& row) {
  std::vector<double> free;
  for (ActionBox& box : row) {
    std::size_t lane = 0;
    while (lane < free.size() && free[lane] > box.start) ++lane;
    if (lane == free.size()) {
      if (lane < kMaxLanes) {
        free.push_back(0);
      } else {
        lane = kMaxLanes - 1;
      }
    }
    free[lane] = std::max(free[lane], box.end);
    box.lane = static_cast<int>(lane);
  }
}

Panel panel_of(const schedule::Timeline& timeline, TimeUnit unit) {
  Panel panel;
  panel.measured = timeline.source == schedule::TimelineSource::Measured;
  panel.name = panel.measured ? "measured" : "predicted";
  panel.end = timeline.makespan();
  // Free communication is not drawn. Otherwise, even a receive of zero length is drawn, for its arrow.
  bool any_communication = false;
  for (const auto& rank : timeline.ranks) {
    for (const schedule::TimedAction& timed : rank)
      any_communication |= !timed.action.is_compute() && timed.end > timed.start;
  }
  for (const auto& rank : timeline.ranks) {
    auto& compute = panel.compute.emplace_back();
    auto& communication = panel.communication.emplace_back();
    for (const schedule::TimedAction& timed : rank) {
      if (timed.action.is_idle()) continue;
      if (timed.action.is_compute()) {
        add_compute(compute, timed);
      } else if (any_communication && (timed.end > timed.start || timed.action.is_transfer())) {
        communication.push_back({timed.action, timed.start, timed.end});
      }
    }
    find_lanes(communication);
  }
  if (!any_communication) panel.communication.clear();
  panel.memory = timeline.memory;

  const std::vector<plan::RankReport> ranks = plan::report_ranks(timeline);
  double bubble = 0, own_bubble = 0;
  std::uint64_t peak = 0;
  for (const plan::RankReport& rank : ranks) {
    bubble += rank.bubble / static_cast<double>(ranks.size());
    own_bubble += rank.own_bubble / static_cast<double>(ranks.size());
    peak = std::max(peak, rank.peak_memory);
  }
  panel.summary = {{"step", format_time(panel.end, unit)},
                   {"idle in the step", format_share(bubble)},
                   {"idle inside the ranks' own spans", format_share(own_bubble)}};
  if (!timeline.memory.empty()) panel.summary.emplace_back("peak memory", format_memory(peak, unit));
  return panel;
}

void mark_critical(Panel& panel, const plan::Simulation& simulation) {
  // A rank runs each action only once, so an action of a rank identifies a box.
  std::vector<std::unordered_set<schedule::Action, ActionHash>> critical(simulation.timeline.ranks.size());
  for (const plan::CriticalAction& entry : simulation.critical_path) {
    for_each_part(entry.timed.action,
                  [&](const schedule::Action& part) { critical[entry.rank.index()].insert(part); });
  }
  for (auto* rows : {&panel.compute, &panel.communication}) {
    for (std::size_t r = 0; r < rows->size(); ++r) {
      for (ActionBox& box : (*rows)[r]) box.critical = critical[r].contains(box.action);
    }
  }
}

std::string title_of(const std::string& name, const schedule::Placement& placement, int microbatches) {
  const std::string title = name.empty() ? "Schedule" : name;
  return title + ": " + counted(placement.ranks(), "rank") + ", " + counted(placement.num_stages(), "stage") +
         ", " + counted(microbatches, "microbatch");
}

}  // namespace

Drawing draw(const schedule::Schedule& schedule) {
  Drawing drawing{title_of(schedule.name, schedule.placement, schedule.microbatches),
                  TimeUnit::Units,
                  schedule.placement,
                  chunks(schedule.placement),
                  {}};
  Panel panel;
  panel.name = "order";
  for (const schedule::ActionList& rank : schedule.ranks) {
    auto& row = panel.compute.emplace_back();
    for (std::size_t slot = 0; slot < rank.size(); ++slot) {
      const auto at = static_cast<double>(slot);
      if (!rank[slot].is_idle()) add_compute(row, {rank[slot], at, at + 1});
    }
    panel.end = std::max(panel.end, static_cast<double>(rank.size()));
  }
  panel.summary = {{"slots", format_time(panel.end, TimeUnit::Units)}};
  drawing.panels.push_back(std::move(panel));
  return drawing;
}

Drawing draw(std::span<const schedule::Timeline> timelines, TimeUnit time_unit) {
  const schedule::Timeline& first = timelines.front();
  Drawing drawing{title_of(first.name, first.placement, first.microbatches),
                  time_unit,
                  first.placement,
                  chunks(first.placement),
                  {}};
  for (const schedule::Timeline& timeline : timelines)
    drawing.panels.push_back(panel_of(timeline, time_unit));
  return drawing;
}

void add_panel(Drawing& drawing, const schedule::Timeline& timeline) {
  drawing.panels.push_back(panel_of(timeline, drawing.time_unit));
}

Drawing draw(const schedule::Program& program) {
  plan::Costs costs = plan::Costs::uniform(program.num_stages());
  costs.link.latency = 0.1;
  return draw(simulate(program, costs), TimeUnit::Units);
}

Drawing draw(const plan::Simulation& simulation, TimeUnit time_unit) {
  Drawing drawing = draw(std::span(&simulation.timeline, 1), time_unit);
  mark_critical(drawing.panels.front(), simulation);
  return drawing;
}

Drawing draw_comparison(std::span<const plan::Simulation* const> simulations, TimeUnit time_unit,
                        std::span<const double> size_of_unit) {
  const schedule::Timeline& first = simulations.front()->timeline;
  const auto timelines = static_cast<std::int64_t>(simulations.size());
  Drawing drawing{"Comparison of " + counted(timelines, "schedule"),
                  time_unit,
                  first.placement,
                  chunks(first.placement),
                  {}};
  for (std::size_t i = 0; i < simulations.size(); ++i) {
    const schedule::Timeline& timeline = simulations[i]->timeline;
    Panel panel = panel_of(timeline, time_unit);
    mark_critical(panel, *simulations[i]);
    panel.name = title_of(timeline.name, timeline.placement, timeline.microbatches);
    panel.chunk_of_stage = chunks(timeline.placement);
    if (!size_of_unit.empty()) {
      panel.memory_scale = size_of_unit[i];
      const auto peak = static_cast<double>(simulations[i]->peak_memory());
      if (!timeline.memory.empty())
        panel.summary.back().second = formatted("%.6g", peak * panel.memory_scale);
    }
    drawing.panels.push_back(std::move(panel));
  }
  return drawing;
}

}  // namespace penstock::view
