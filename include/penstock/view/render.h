// Renderers: a grid for the terminal, SVG, an HTML page, and a trace for Chrome or Perfetto.
#pragma once

#include <penstock/view/drawing.h>

#include <optional>
#include <string>

namespace penstock::view {

//! How a grid is printed.
struct GridOptions {
  bool color = false;          //!< ANSI colors; without them each cell shows its letter
  std::optional<int> width{};  //!< terminal columns; longer steps are scaled down; default: no limit
};

//! Rows of cells, like the diagrams in papers.
std::string to_grid(const Drawing& drawing, const GridOptions& options = {});

//! A self-contained figure for light and dark pages.
std::string to_svg(const Drawing& drawing);

//! A self-contained page with zoom, times on hover, memory below each timeline, and light and dark themes.
std::string to_html(const Drawing& drawing);

//! Chrome's trace format, which Perfetto also reads: one process per rank, separate tracks for computations
//! and communication, arrows from sends to receives, memory as a counter.
std::string to_trace(const Drawing& drawing);

}  // namespace penstock::view
