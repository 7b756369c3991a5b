// The grid for the terminal: one row per rank, one cell per action; widths are proportional to durations.
#include "base/text.h"
#include "view/palette.h"

#include <penstock/view/render.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock::view {
namespace {

constexpr double kMaxColumns = 4000;  //!< columns, if the terminal sets no limit

//! One column of a row before it is formatted: its box and its character.
struct Cell {
  const ActionBox* box = nullptr;
  char character = ' ';
};

class Grid {
 public:
  Grid(const Drawing& drawing, const Panel& panel, const GridOptions& options)
      : drawing_(drawing), panel_(panel), options_(options) {
    const auto& chunks = panel.chunk_of_stage.empty() ? drawing.chunk_of_stage : panel.chunk_of_stage;
    for (const int chunk : chunks) several_chunks_ |= chunk > 0;
    gutter_ = std::to_string(std::max(std::size_t{1}, panel.compute.size()) - 1).size() + 6;
    find_scale();
  }

  std::string text() const {
    std::string result;
    for (std::size_t r = 0; r < panel_.compute.size(); ++r) {
      std::string label = str_cat("rank ", r);
      label.resize(gutter_, ' ');
      result += label;
      append_row(result, panel_.compute[r]);
      result += '\n';
    }
    return result;
  }

  std::string legend() const {
    std::string result(gutter_, ' ');
    for (const schedule::ActionKind kind :
         {schedule::ActionKind::Forward, schedule::ActionKind::Backward, schedule::ActionKind::BackwardInput,
          schedule::ActionKind::BackwardWeight}) {
      if (!uses(kind)) continue;
      const std::string name(to_string(kind));
      result += options_.color ? paint(kind, 0) + " " + name + " \x1b[0m" : name;
      result += " " + std::string(style_of(kind).meaning) + "   ";
    }
    while (!result.empty() && result.back() == ' ') result.pop_back();
    return result + "\n";
  }

 private:
  bool uses(schedule::ActionKind kind) const {
    for (const auto& row : panel_.compute) {
      for (const ActionBox& box : row) {
        if (box.action.kind() == kind) return true;
      }
    }
    return false;
  }

  std::string label_of(const ActionBox& box) const {
    std::string microbatch = std::to_string(box.action.microbatch().value);
    if (options_.color) return microbatch;
    const std::string stage = several_chunks_ ? std::to_string(box.action.stage().value) : "";
    return stage + std::string(to_string(box.action.kind())) + microbatch;
  }

  //! Computes the columns per unit of time: enough for the narrowest label, within the width limit.
  void find_scale() {
    double needed = 0;
    for (const auto& row : panel_.compute) {
      for (const ActionBox& box : row) {
        const double length = (box.end - box.start) * (box.part == BoxPart::Full ? 1 : 0.5);
        if (length > 0) needed = std::max(needed, static_cast<double>(label_of(box).size() + 1) / length);
      }
    }
    const double limit =
        options_.width ? std::max(8.0, *options_.width - static_cast<double>(gutter_)) : kMaxColumns;
    scale_ = panel_.end > 0 ? std::min(needed, limit / panel_.end) : 1;
  }

  std::size_t column(double time) const { return static_cast<std::size_t>(std::llround(time * scale_)); }

  void append_row(std::string& text, const std::vector<ActionBox>& row) const {
    std::vector<Cell> cells(column(panel_.end) + 1);
    for (const ActionBox& box : row) {
      const double middle = (box.start + box.end) / 2;  // the parts of an overlap are shown side by side
      const std::size_t first = column(box.part == BoxPart::BottomHalf ? middle : box.start);
      const std::size_t last = std::max(column(box.part == BoxPart::TopHalf ? middle : box.end), first + 1);
      const std::string label = label_of(box);
      const bool fits = label.size() <= last - first;
      for (std::size_t c = first; c < last && c < cells.size(); ++c) {
        const std::size_t at = c - first;
        char character = options_.color ? ' ' : '-';
        if (fits && at < label.size()) character = label[at];
        if (!fits && !options_.color) character = to_string(box.action.kind()).front();
        if (!options_.color && fits && c + 1 == last && at >= label.size()) character = ' ';
        cells[c] = {&box, character};
      }
    }
    while (!cells.empty() && cells.back().box == nullptr) cells.pop_back();
    const ActionBox* before = nullptr;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const Cell& cell = cells[c];
      if (options_.color && (cell.box != before || c == 0)) {
        if (before != nullptr) text += "\x1b[0m";
        if (cell.box != nullptr) text += paint(cell.box->action.kind(), chunk(cell.box->action.stage()));
        before = cell.box;
      }
      text += cell.box == nullptr && !options_.color ? '.' : cell.character;
    }
    if (before != nullptr) text += "\x1b[0m";
    while (text.back() == ' ') text.pop_back();
  }

  int chunk(StageId stage) const { return drawing_.chunk(panel_, stage); }

  //! Dark text on the color of the kind; later stages of a rank are lighter.
  static std::string paint(schedule::ActionKind kind, int chunk) {
    const int color = style_of(kind).ansi;
    return str_cat("\x1b[38;5;16;48;5;", chunk == 0 ? color : color + 42, "m");
  }

  const Drawing& drawing_;
  const Panel& panel_;
  const GridOptions& options_;
  bool several_chunks_ = false;
  std::size_t gutter_ = 0;
  double scale_ = 1;
};

}  // namespace

std::string to_grid(const Drawing& drawing, const GridOptions& options) {
  std::string text = drawing.title + "\n";
  for (const Panel& panel : drawing.panels) {
    const Grid grid(drawing, panel, options);
    if (drawing.panels.size() > 1) text += "\n" + panel.name + "\n";
    text += grid.text();
    if (&panel == &drawing.panels.back()) text += grid.legend();
  }
  return text;
}

}  // namespace penstock::view
