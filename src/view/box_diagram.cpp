// Draws a row of boxes and the arrows between them.
#include "view/box_diagram.h"

#include "base/markup.h"
#include "base/text.h"

#include <algorithm>
#include <utility>

namespace penstock::view {
namespace {

// clang-format off
constexpr const char* kStyle =
    "text{font:11px system-ui,'Helvetica Neue',Arial,sans-serif;fill:#3b4454}"
    ".h{font-size:14px;font-weight:600;fill:#1d2433}"
    ".m{text-anchor:middle}"
    ".s{font-size:10px}"
    ".paper{fill:#fff}"
    ".box{fill:#eef4fb;stroke:#3b78b5;stroke-width:1.4}"
    ".user{fill:#f5f0e6;stroke:#a6803c;stroke-width:1.4}"
    ".w{fill:none;stroke:#3b4454;stroke-width:1.4}"
    ".k{stroke:#3b78b5}"
    ".u{stroke:#a6803c}"
    ".t{stroke:#b5473b;stroke-dasharray:5 3}"
    ".head{fill:#3b4454}"
    "@media(prefers-color-scheme:dark){"
    ".paper{fill:#12161d}"
    "text{fill:#b8c1cf}"
    ".h{fill:#e4e8ef}"
    ".box{fill:#18222e}"
    ".user{fill:#241f14}"
    ".w{stroke:#95a0b2}"
    ".k{stroke:#6aa5df}"
    ".u{stroke:#cda85f}"
    ".t{stroke:#ff7a6b}"
    ".head{fill:#95a0b2}"
    "}";
// clang-format on

constexpr int kBoxWidth = 176, kBoxHeight = 104, kBoxGap = 150, kOuterMargin = 20, kSourceWidth = 84,
              kArcStep = 26;
constexpr std::size_t kMaxArcLabel = 44, kMaxSubtitle = 30;

std::string shortened(const std::string& text, std::size_t limit) {
  return text.size() <= limit ? text : text.substr(0, limit - 1) + "…";
}

class DiagramSvg {
 public:
  explicit DiagramSvg(const BoxDiagram& diagram) : diagram_(diagram) {
    int above = 0;
    below_ = diagram.ties.empty() ? 0 : 1;
    for (const DiagramArrow& arrow : diagram.arrows) {
      const int span = arrow.to - arrow.from;
      int& height = arrow.from < 0 ? below_ : above;
      if (span > 1) height = std::max(height, span);
    }
    for (const DiagramTie& tie : diagram.ties)
      below_ = std::max(below_, tie.boxes.back() - tie.boxes.front());
    top_ = kOuterMargin + (above > 0 ? 14 + above * kArcStep : 0);
  }

  std::string text() {
    const int boxes = static_cast<int>(diagram_.boxes.size());
    const int width = left(boxes) + kOuterMargin,
              total = top_ + kBoxHeight + kOuterMargin + (below_ > 0 ? 24 + below_ * kArcStep : 0);
    out_ = str_cat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", total,
                   "\" width=\"", width, "\" height=\"", total, "\">\n<style>", kStyle,
                   "</style>\n"
                   "<defs><marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
                   "markerHeight=\"7\" "
                   "orient=\"auto\"><path class=\"head\" d=\"M0 0L8 4L0 8z\"/></marker></defs>\n"
                   "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n");
    rect("user", kOuterMargin, kSourceWidth);
    add_text("h m", kOuterMargin + kSourceWidth / 2, top_ + kBoxHeight / 2 - 4, diagram_.source_heading);
    add_text("m", kOuterMargin + kSourceWidth / 2, top_ + kBoxHeight / 2 + 14, diagram_.source_line);
    for (int index = 0; index < boxes; ++index) draw_box(index);
    for (const DiagramArrow& arrow : diagram_.arrows) draw_arrow(arrow);
    for (const DiagramTie& tie : diagram_.ties) {
      for (std::size_t i = 1; i < tie.boxes.size(); ++i)
        arc("w t", tie.boxes[i - 1], tie.boxes[i], false, shortened(tie.label, kMaxArcLabel), tie.title);
    }
    return out_ + "</svg>\n";
  }

 private:
  //! The left edge of a box.
  static int left(int box) {
    return kOuterMargin + kSourceWidth + kBoxGap + box * (kBoxWidth + kBoxGap) - (box < 0 ? 0 : 60);
  }
  static int middle(int box) { return box < 0 ? kOuterMargin + kSourceWidth / 2 : left(box) + kBoxWidth / 2; }

  void rect(const std::string& kind, int x, int width) {
    out_ += str_cat("<rect class=\"", kind, "\" x=\"", x, "\" y=\"", top_, "\" width=\"", width,
                    "\" height=\"", kBoxHeight, "\" rx=\"7\"/>\n");
  }
  void add_text(const std::string& kind, int x, int y, const std::string& text) {
    out_ +=
        str_cat("<text class=\"", kind, "\" x=\"", x, "\" y=\"", y, "\">", escape_markup(text), "</text>\n");
  }

  void draw_box(int index) {
    const DiagramBox& box = diagram_.boxes[static_cast<std::size_t>(index)];
    rect("box", left(index), kBoxWidth);
    const int x = left(index) + 12;
    add_text("h", x, top_ + 22, box.heading);
    add_text("s", x, top_ + 39, shortened(box.subtitle, kMaxSubtitle));
    int y = top_ + 57;
    for (const std::string& line : box.lines) {
      add_text("", x, y, line);
      y += 16;
    }
  }

  void draw_arrow(const DiagramArrow& arrow) {
    const auto [from, to] = std::pair(arrow.from, arrow.to);
    if (to - from > 1) {
      arc(from < 0 ? "w u" : "w k", from, to, from >= 0, shortened(arrow.label, kMaxArcLabel), arrow.title);
      return;
    }
    const int start = from < 0 ? kOuterMargin + kSourceWidth : left(from) + kBoxWidth, end = left(to),
              y = top_ + kBoxHeight / 2;
    out_ += str_cat("<g><title>", escape_markup(arrow.title),
                    "</title><path class=\"w\" marker-end=\"url(#a)\" d=\"M", start, " ", y, "H", end,
                    "\"/></g>\n");
    const int x = (start + end) / 2;
    const auto limit = static_cast<std::size_t>((end - start) / 6);
    add_text("m s", x, y - 6, shortened(arrow.name, limit));
    if (!arrow.detail.empty()) add_text("m s", x, y + 14, shortened(arrow.detail, limit));
  }

  void arc(const std::string& kind, int from, int to, bool above, const std::string& label,
           const std::string& title) {
    // Arcs start right of a box's center and end left of it, so that they do not touch.
    const int x1 = middle(from) + (from < 0 ? 0 : 24), x2 = middle(to) - 24;
    const int y = above ? top_ : top_ + kBoxHeight, reach = (to - from) * kArcStep + 10;
    const int peak = above ? y - reach * 4 / 3 + 8 : y + reach * 4 / 3 - 8;
    out_ += str_cat("<g><title>", escape_markup(title), "</title><path class=\"", kind,
                    "\" marker-end=\"url(#a)\" d=\"M", x1, " ", y, "C", x1, " ", peak, " ", x2, " ", peak,
                    " ", x2, " ", y, "\"/></g>\n");
    const int label_y = y + (peak - y) * 3 / 4;
    add_text("m s", (x1 + x2) / 2, above ? label_y - 4 : label_y + 13, label);
  }

  const BoxDiagram& diagram_;
  int top_ = 0, below_ = 0;
  std::string out_;
};

}  // namespace

std::string to_svg(const BoxDiagram& diagram) {
  return DiagramSvg(diagram).text();
}

}  // namespace penstock::view
