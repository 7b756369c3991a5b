// A row of boxes with arrows between them, drawn as SVG: the stages of a split model.
#pragma once

#include <string>
#include <vector>

namespace penstock::view {

//! One box of the row.
struct DiagramBox {
  std::string heading;
  std::string subtitle;            //!< in small letters below the heading
  std::vector<std::string> lines;  //!< below the subtitle
};

//! An arrow from one box to a later one. Arrows to the next box are straight, others are arcs.
struct DiagramArrow {
  //! The index of a box, or -1 for the source of the diagram.
  int from = 0, to = 0;
  std::string label;         //!< of an arc
  std::string name, detail;  //!< of a straight arrow: the text above and below it; `detail` may be empty
  std::string title;         //!< shown when the pointer is over the arrow
};

//! Boxes that hold the same thing, in order, joined by dashed arcs.
struct DiagramTie {
  std::vector<int> boxes;
  std::string label, title;
};

//! A source on the left, then the boxes in a row. Arcs from boxes are above the row; arcs from the source and
//! ties are below it.
struct BoxDiagram {
  std::string source_heading, source_line;
  std::vector<DiagramBox> boxes;
  std::vector<DiagramArrow> arrows;
  std::vector<DiagramTie> ties;
};

//! A self-contained figure for light and dark pages.
std::string to_svg(const BoxDiagram& diagram);

}  // namespace penstock::view
