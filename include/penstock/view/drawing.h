// What every picture is made from: boxes of actions on rows of ranks, beside each other on one axis of time.
// The grid, the SVG, the page and the trace draw the same `Drawing`.
#pragma once

#include <penstock/plan/simulate.h>
#include <penstock/schedule/schedule.h>
#include <penstock/schedule/timeline.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

//! Which part of its row's height a box fills: an overlap's two parts share theirs.
enum class BoxPart { Whole, TopHalf, BottomHalf };

struct ActionBox {
  Action action;  //!< never an overlap: its parts are two boxes
  double start = 0;
  double end = 0;
  BoxPart part = BoxPart::Whole;
  bool critical = false;  //!< on the critical path
  int lane = 0;           //!< of communication: boxes of one lane do not overlap
};

//! One timeline.
struct Panel {
  std::string name;  //!< `predicted`, `measured`, …
  double end = 0;
  std::vector<std::vector<ActionBox>> compute;        //!< one list a rank, in order of start
  std::vector<std::vector<ActionBox>> communication;  //!< transfers and chores, or empty
  std::vector<std::vector<MemorySample>> memory;
  std::vector<std::pair<std::string, std::string>> summary;  //!< what to say above it: name, value
};

struct Drawing {
  std::string title;
  bool seconds = false;  //!< whether times are seconds, or slots and units
  Placement placement;
  std::vector<int> chunk_of_stage;  //!< how many stages of the same rank come before it
  std::vector<Panel> panels;        //!< at least one; they share the axis of time

  int ranks() const { return placement.ranks(); }
};

//! A compute table as it stands: each slot is one unit wide, idle slots are gaps.
Drawing draw(const Schedule& schedule);
//! A program as the simulator plays it at equal costs (F, I and W one unit, B two), transfers a tenth of one.
Drawing draw(const Program& program);
//! A simulation: its timeline, its measures, its critical path.
Drawing draw(const Simulation& simulation, bool seconds);
//! A predicted and a measured timeline of one program, or either alone.
Drawing draw(std::span<const Timeline> timelines, bool seconds);

//! Adds a timeline to a drawing of the same program, for example the measured one under the predicted.
void add_panel(Drawing& drawing, const Timeline& timeline);

}  // namespace penstock
