// The common input of all renderers: one row of boxes per rank on a time axis, one box per action. The grid,
// the SVG, the HTML page and the trace render the same `Drawing`.
#pragma once

#include <penstock/plan/simulate.h>
#include <penstock/schedule/schedule.h>
#include <penstock/schedule/timeline.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::view {

//! The unit of the times of a drawing.
enum class TimeUnit {
  Units,  //!< slots of a table or abstract units; memory is a number of activations
  Seconds,
};

//! Which part of the row height a box fills; the two parts of an overlap share a row.
enum class BoxPart { Full, TopHalf, BottomHalf };

//! One action as a box.
struct ActionBox {
  schedule::Action action;  //!< never an overlap, which becomes two boxes
  double start = 0;
  double end = 0;
  BoxPart part = BoxPart::Full;
  bool critical = false;  //!< on the critical path
  int lane = 0;           //!< of communication; boxes of one lane do not overlap
};

//! One timeline.
struct Panel {
  std::string name;  //!< `predicted`, `measured`, …
  double end = 0;
  std::vector<std::vector<ActionBox>> compute;        //!< one list per rank, ordered by start
  std::vector<std::vector<ActionBox>> communication;  //!< transfers and stage actions, or empty
  std::vector<std::vector<schedule::MemorySample>> memory;
  double memory_scale = 1;          //!< what a unit of `memory` counts; other than 1 only in comparisons
  bool measured = false;            //!< `memory` counts all memory in use, not only what a prediction counts
  std::vector<int> chunk_of_stage;  //!< as in Drawing, if the panels show different schedules; else empty
  std::vector<std::pair<std::string, std::string>> summary;  //!< shown above the panel: name, value
};

//! One or more timelines, of one schedule or of several that are compared.
struct Drawing {
  std::string title;
  TimeUnit time_unit = TimeUnit::Units;
  schedule::Placement placement;
  std::vector<int> chunk_of_stage;  //!< per stage: the number of earlier stages on the same rank
  std::vector<Panel> panels;        //!< at least one; all share the time axis
  //! What the drawing shows, such as model, step and date: name, value. The page shows it below the title.
  std::vector<std::pair<std::string, std::string>> facts{};

  int ranks() const { return placement.ranks(); }
  //! The number of stages on the same rank before this one, in the schedule of the panel.
  int chunk(const Panel& panel, StageId stage) const {
    return (panel.chunk_of_stage.empty() ? chunk_of_stage : panel.chunk_of_stage)[stage.index()];
  }
};

//! Draws a compute table: each slot is one unit wide, idle slots are gaps.
Drawing draw(const schedule::Schedule& schedule);
//! Draws a program, simulated with equal costs (F, I and W take 1 unit, B 2, transfers 0.1).
Drawing draw(const schedule::Program& program);
//! Draws a simulation: timeline, summary and critical path.
Drawing draw(const plan::Simulation& simulation, TimeUnit time_unit);
//! Draws one or more timelines of the same program, such as the predicted and the measured one.
Drawing draw(std::span<const schedule::Timeline> timelines, TimeUnit time_unit);
//! Draws simulations of different schedules one below the other, on a common time axis. `size_of_unit` has
//! the memory that an activation of each simulation counts, to compare stages and microbatches of different
//! size; empty: 1 each.
Drawing draw_comparison(std::span<const plan::Simulation* const> simulations, TimeUnit time_unit,
                        std::span<const double> size_of_unit = {});

//! Adds a timeline to a drawing of the same program, such as the measured one below the predicted one.
void add_panel(Drawing& drawing, const schedule::Timeline& timeline);

}  // namespace penstock::view
