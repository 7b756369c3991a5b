// Timelines that several tests of view draw.
#pragma once

#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/view/render.h>

#include <span>
#include <utility>
#include <vector>

namespace penstock::view {

//! Simulates a schedule in which F takes 1 unit and B 2.
inline plan::Simulation run(schedule::ScheduleKind kind, schedule::ScheduleShape shape, double latency = 0) {
  plan::Costs costs = plan::Costs::uniform(shape.num_stages());
  costs.link.latency = latency;
  return simulate(make_program(make_schedule(kind, shape), schedule::SendMode::Buffered), costs);
}

//! An action, written as in a schedule file, with its start and end.
inline schedule::TimedAction timed(const char* action, double start, double end) {
  return {schedule::parse_action(action), start, end};
}

//! A predicted timeline; the stages are placed in a V.
inline schedule::Timeline make_timeline(const char* name, int stages, int microbatches,
                                        std::vector<std::vector<schedule::TimedAction>> ranks) {
  schedule::Timeline timeline;
  timeline.name = name;
  timeline.placement =
      schedule::Placement::make(static_cast<int>(ranks.size()), stages, schedule::PlacementStyle::V);
  timeline.microbatches = microbatches;
  timeline.ranks = std::move(ranks);
  return timeline;
}

inline Drawing draw_one(const schedule::Timeline& timeline, TimeUnit unit = TimeUnit::Units) {
  return draw(std::span(&timeline, 1), unit);
}

//! Every kind of box: an overlap, boxes and transfers of zero length, stage actions, up to three lanes of
//! communication, memory. The narrowest box is 0.3 long and is not the first one.
inline Drawing draw_all_kinds() {
  schedule::Timeline timeline = make_timeline(
      "all kinds", 4, 2,
      {{timed("0UNSHARD", 0, 0.5), timed("0F0", 0.5, 1.5), timed("0SEND_F0", 1.5, 1.7),
        timed("0F1", 1.5, 2.5), timed("3RECV_F0", 2, 4.5), timed("0SEND_F1", 2.5, 2.9),
        timed("3RECV_F1", 2.75, 6.25), timed("3F0", 4.5, 5.5), timed("(3F1;3B0)OVERLAP_F_B", 6.25, 8.25),
        timed("0RECV_B0", 6.25, 10.5), timed("3SEND_B0", 8.25, 8.25), timed("3I1", 8.25, 9.25),
        timed("0B0", 10.5, 12.5), timed("3W1", 12.5, 12.8), timed("0I1", 12.8, 13.7),
        timed("0REDUCE_GRAD", 12.8, 13.7), timed("0W1", 13.7, 13.7)},
       {timed("1RECV_F0", 0, 1.7), timed("1F0", 1.7, 2.7), timed("2F0", 2.7, 3.7),
        timed("2SEND_F0", 3.7, 4.5), timed("2RECV_B0", 4, 8.25), timed("2B0", 8.25, 9.25),
        timed("1SEND_B0", 9.25, 10.5)}});
  timeline.memory = {{{0, 0}, {0.5, 1}, {1.5, 2}, {12.5, 0}}, {{1.7, 1}, {9.25, 0}}};
  Drawing drawing = draw_one(timeline);
  for (ActionBox& box : drawing.panels[0].compute[0]) box.critical = box.start >= 12.5;  // 3W1, 0I1, 0W1
  drawing.panels[0].communication[1].back().critical = true;
  return drawing;
}

}  // namespace penstock::view
