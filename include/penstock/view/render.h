// Drawings as text that other programs show: a terminal's grid, SVG, one HTML page, a Chrome or Perfetto
// trace.
#pragma once

#include <penstock/view/drawing.h>

#include <string>

namespace penstock {

struct GridOptions {
  bool colour = false;  //!< ANSI colours; without them each cell carries its letter
  int width = 0;        //!< columns of the terminal, to which long steps are squeezed; 0: as wide as it needs
};

//! Rows of cells like the diagrams in the papers.
std::string to_grid(const Drawing& drawing, const GridOptions& options = {});

//! A figure that stands alone, for light and dark pages.
std::string to_svg(const Drawing& drawing);

//! One self-contained page: zoom, times on hover, memory under each timeline, light and dark.
std::string to_html(const Drawing& drawing);

//! Chrome's trace format, which Perfetto reads: a process for each rank, computations and communication on
//! tracks of their own, arrows from sends to receives, memory as a counter.
std::string to_trace(const Drawing& drawing);

}  // namespace penstock
