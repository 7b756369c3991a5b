// The figure for a paper or a README: boxes with their microbatch, a time axis and a legend. Follows the
// light or dark theme of the reader.
#include "base/markup.h"
#include "base/text.h"
#include "view/numbers.h"
#include "view/palette.h"

#include <penstock/view/render.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace penstock::view {
namespace {

constexpr double kGutter = 62, kMargin = 16, kRowHeight = 24, kRowGap = 5, kLaneHeight = 6, kAxisHeight = 22;

std::string style() {
  std::string text =
      "text{font-family:system-ui,'Helvetica Neue',Arial,sans-serif;fill:#1d2433}"
      ".n{font-size:11.5px;font-weight:600;text-anchor:middle;fill:#fff}.n1{fill:#1d2433}"
      ".l{font-size:12px;fill:#667085}.r{text-anchor:end}.m{text-anchor:middle}.h{font-size:15px;font-weight:"
      "600}"
      ".paper{fill:#fff}.lane{fill:#f5f7fa}.tick{stroke:#e3e7ee}.k{stroke:#c8352b;stroke-width:1.6}";
  std::string dark =
      ".paper{fill:#12161d}text{fill:#e4e8ef}.n{fill:#0d1117}.n1{fill:#e4e8ef}.l{fill:#95a0b2}.lane{fill:#"
      "1a2029}.tick{stroke:"
      "#2a313d}.k{stroke:#ff7a6b}";
  std::set<std::string_view> seen;
  for (const schedule::ActionKind kind : kActionKinds) {
    const KindStyle& kind_style = style_of(kind);
    if (!seen.insert(kind_style.color).second) continue;
    const std::string name(kind_style.color);
    text += "." + name + "{fill:" + std::string(kind_style.light) + "}";
    dark += "." + name + "{fill:" + std::string(kind_style.dark) + "}";
  }
  text += ".c1{fill-opacity:.62}.c2{fill-opacity:.42}.c3{fill-opacity:.28}";
  return text + "@media(prefers-color-scheme:dark){" + dark + "}";
}

class Figure {
 public:
  explicit Figure(const Drawing& drawing) : drawing_(drawing) {
    for (const Panel& panel : drawing.panels) end_ = std::max(end_, panel.end);
    if (end_ <= 0) end_ = 1;
    double narrowest = end_;
    for (const Panel& panel : drawing.panels) {
      for (const auto& row : panel.compute) {
        for (const ActionBox& box : row) {
          if (box.end > box.start) narrowest = std::min(narrowest, box.end - box.start);
        }
      }
    }
    // Enough room for two digits in the narrowest box, within the width of a page.
    scale_ = std::clamp(22 / narrowest, 640 / end_, 1500 / end_);
  }

  std::string text() {
    std::string body;
    y_ = kMargin + 14;
    body += label("h", kMargin, y_, escape_markup(drawing_.title));
    y_ += 14;
    for (const Panel& panel : drawing_.panels) draw(body, panel);
    draw_legend(body);
    std::string result = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ";
    append_number(result, width(), 6);
    result += ' ';
    append_number(result, y_ + kMargin, 6);
    result += "\" width=\"";
    append_number(result, width(), 6);
    result += "\" height=\"";
    append_number(result, y_ + kMargin, 6);
    result += "\"><style>" + style() + "</style>\n";
    result += "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n";
    return result + body + "</svg>\n";
  }

 private:
  double width() const { return kGutter + end_ * scale_ + kMargin; }
  double x(double time) const { return kGutter + time * scale_; }

  static std::string label(const std::string& classes, double x, double y, const std::string& content) {
    std::string text = "<text class=\"" + classes + "\" x=\"";
    append_number(text, x, 6);
    text += "\" y=\"";
    append_number(text, y, 6);
    return text + "\">" + content + "</text>\n";
  }

  static void rect(std::string& out, const std::string& classes, double x, double y, double width,
                   double height, const std::string& title = {}) {
    out += "<rect class=\"" + classes + "\" x=\"";
    append_number(out, x, 7);
    out += "\" y=\"";
    append_number(out, y, 6);
    out += "\" width=\"";
    append_number(out, std::max(width, 0.3), 6);
    out += "\" height=\"";
    append_number(out, height, 4);
    out += title.empty() ? "\"/>\n" : "\"><title>" + title + "</title></rect>\n";
  }

  void draw(std::string& out, const Panel& panel) {
    if (drawing_.panels.size() > 1) {
      y_ += 18;
      out += label("h", kGutter, y_, escape_markup(panel.name));
      y_ += 4;
    }
    int lanes = 0;
    for (const auto& row : panel.communication) {
      for (const ActionBox& box : row) lanes = std::max(lanes, box.lane + 1);
    }
    const double pitch = kRowHeight + lanes * kLaneHeight + kRowGap;
    const double top = y_ + kAxisHeight;
    const auto ranks = static_cast<double>(panel.compute.size());
    draw_axis(out, top, top + pitch * ranks - kRowGap);
    for (std::size_t r = 0; r < panel.compute.size(); ++r) {
      const double y = top + pitch * static_cast<double>(r);
      out += label("l r", kGutter - 10, y + kRowHeight / 2 + 4, str_cat("rank ", r));
      rect(out, "lane", x(0), y, panel.end * scale_, kRowHeight);
      for (const ActionBox& box : panel.compute[r])
        draw_box(out, box, drawing_.chunk(panel, box.action.stage()), y);
      if (r >= panel.communication.size()) continue;
      for (const ActionBox& box : panel.communication[r]) {
        rect(out, std::string(style_of(box.action.kind()).color), x(box.start),
             y + kRowHeight + 1 + box.lane * kLaneHeight, (box.end - box.start) * scale_, kLaneHeight - 1,
             to_string(box.action));
      }
    }
    y_ = top + pitch * ranks;
  }

  void draw_axis(std::string& out, double top, double bottom) {
    const double about = end_ / std::max(2.0, end_ * scale_ / 90);
    double step = std::pow(10, std::floor(std::log10(about)));
    for (const double factor : {2.0, 5.0, 10.0}) {
      if (step < about && step * factor >= about) {
        step *= factor;
        break;
      }
    }
    for (int i = 0; i * step <= end_ * (1 + 1e-9); ++i) {
      const double at = x(i * step);
      out += "<line class=\"tick\" x1=\"";
      append_number(out, at, 7);
      out += "\" x2=\"";
      append_number(out, at, 7);
      out += "\" y1=\"";
      append_number(out, top - 5, 6);
      out += "\" y2=\"";
      append_number(out, bottom, 6);
      out += "\"/>\n";
      std::string number;
      append_number(number, i * step, 5);
      if (drawing_.time_unit == TimeUnit::Seconds && i > 0) number = format_seconds(i * step);
      const double half = 3.3 * static_cast<double>(number.size());  // a label at the end is moved inside
      out += label("l m", std::min(at, width() - half), top - 8, number);
    }
  }

  void draw_box(std::string& out, const ActionBox& box, int earlier_stages, double row_top) {
    const int chunk = std::min(3, earlier_stages);
    const double height = box.part == BoxPart::Full ? kRowHeight : kRowHeight / 2 - 0.5;
    const double top = box.part == BoxPart::BottomHalf ? row_top + kRowHeight / 2 + 0.5 : row_top;
    const double width = (box.end - box.start) * scale_;
    std::string classes(style_of(box.action.kind()).color);
    if (chunk > 0) classes += str_cat(" c", chunk);
    rect(out, classes, x(box.start), top, width > 4 ? width - 1 : width, height, to_string(box.action));
    const std::string number = std::to_string(box.action.microbatch().value);
    if (width < 7.0 * static_cast<double>(number.size()) + 3) return;
    out += label(chunk > 0 ? "n n1" : "n", x(box.start) + width / 2 - 0.5, top + height / 2 + 4, number);
  }

  void draw_legend(std::string& out) {
    std::set<std::string_view> seen;
    double at = kGutter;
    y_ += 18;
    for (const schedule::ActionKind kind : kActionKinds) {
      const KindStyle& kind_style = style_of(kind);
      if (!uses(kind) || !seen.insert(kind_style.meaning).second) continue;
      rect(out, std::string(kind_style.color), at, y_ - 10, 14, 11);
      out += label("l", at + 20, y_, std::string(kind_style.meaning));
      at += 38 + 6.6 * static_cast<double>(kind_style.meaning.size());
    }
  }

  bool uses(schedule::ActionKind kind) const {
    for (const Panel& panel : drawing_.panels) {
      for (const auto* rows : {&panel.compute, &panel.communication}) {
        for (const auto& row : *rows) {
          if (std::any_of(row.begin(), row.end(),
                          [&](const ActionBox& box) { return box.action.kind() == kind; }))
            return true;
        }
      }
    }
    return false;
  }

  const Drawing& drawing_;
  double end_ = 0;
  double scale_ = 1;
  double y_ = 0;
};

}  // namespace

std::string to_svg(const Drawing& drawing) {
  return Figure(drawing).text();
}

}  // namespace penstock::view
