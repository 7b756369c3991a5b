// Draws the stages as SVG: boxes in a row, user inputs on the left, arrows for values between neighbors,
// arcs above for skip values, arcs below for user inputs of later stages and for tied weights.
#include "base/markup.h"
#include "base/text.h"
#include "graph/passes/graph_costs.h"

#include <penstock/pipe/pipe.h>

#include <algorithm>
#include <array>

namespace penstock::pipe {
namespace {

constexpr int kBoxWidth = 176, kBoxHeight = 104, kBoxGap = 150, kMargin = 20, kUserBoxWidth = 84,
              kArcStep = 26;

std::string shortened(const std::string& text, std::size_t limit) {
  return text.size() <= limit ? text : text.substr(0, limit - 1) + "…";
}

std::string number_text(double value) {
  constexpr std::array units = {"", " k", " M", " G", " T", " P"};
  std::size_t unit = 0;
  for (; value >= 1000 && unit < 5; ++unit) value /= 1000;
  return unit == 0 ? formatted("%.0f", value) : formatted("%.3g%s", value, units[unit]);
}

//! The values that one stage (-1: the user) sends to another.
struct Bundle {
  std::vector<std::string> values;
  std::uint64_t bytes = 0;
};

class Picture {
 public:
  explicit Picture(const Pipe& pipe) : pipe_(pipe) {
    for (int s = 0; s < pipe.num_stages(); ++s) {
      const graph::Graph& graph = pipe.stage_graph(StageId(s));
      const auto& sources = pipe.split().stage(StageId(s)).sources;
      for (std::size_t i = 0; i < sources.size(); ++i) {
        const auto* from = std::get_if<graph::FromStage>(&sources[i]);
        const graph::Value& value = graph.value(graph.inputs[i].value);
        Bundle& bundle = bundles_[{from ? from->stage.value : -1, s}];
        bundle.values.push_back(value.name + (value.meta ? " " + to_string(*value.meta) : ""));
        bundle.bytes += value.meta ? value.meta->nbytes() : 0;
      }
    }
    int above = 0;
    below_ = static_cast<int>(pipe.split().shared.empty() ? 0 : 1);
    for (const auto& [way, bundle] : bundles_) {
      const int span = way.second - way.first;
      if (span > 1) (way.first < 0 ? below_ : above) = std::max(way.first < 0 ? below_ : above, span);
    }
    for (const graph::SharedSlot& slot : pipe.split().shared)
      below_ = std::max(below_, slot.stages.back().value - slot.stages.front().value);
    top_ = kMargin + (above > 0 ? 14 + above * kArcStep : 0);
  }

  std::string text() {
    const int stages = pipe_.num_stages();
    const int width = left(stages) + kMargin,
              total = top_ + kBoxHeight + kMargin + (below_ > 0 ? 24 + below_ * kArcStep : 0);
    out_ = str_cat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", total, "\" width=\"", width,
        "\" height=\"", total,
        "\">\n<style>text{font:11px system-ui,'Helvetica "
        "Neue',Arial,sans-serif;fill:#3b4454}.h{font-size:14px;"
        "font-weight:600;fill:#1d2433}.m{text-anchor:middle}.s{font-size:10px}.paper{fill:#fff}.box{fill:#"
        "eef4fb;"
        "stroke:#3b78b5;stroke-width:1.4}.user{fill:#f5f0e6;stroke:#a6803c;stroke-width:1.4}.w{fill:none;"
        "stroke:#3b4454;stroke-width:1.4}.k{stroke:#3b78b5}.u{stroke:#a6803c}.t{stroke:#b5473b;stroke-"
        "dasharray:"
        "5 "
        "3}.head{fill:#3b4454}@media(prefers-color-scheme:dark){.paper{fill:#12161d}text{fill:#b8c1cf}.h{"
        "fill:"
        "#e4e8ef}.box{fill:#18222e}.user{fill:#241f14}.w{stroke:#95a0b2}.k{stroke:#6aa5df}.u{stroke:#"
        "cda85f}.t{"
        "stroke:#ff7a6b}.head{fill:#95a0b2}}</style>\n"
        "<defs><marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
        "markerHeight=\"7\" "
        "orient=\"auto\"><path class=\"head\" d=\"M0 0L8 4L0 8z\"/></marker></defs>\n"
        "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n");
    rect("user", kMargin, kUserBoxWidth);
    add_text("h m", kMargin + kUserBoxWidth / 2, top_ + kBoxHeight / 2 - 4, "inputs");
    const auto count = std::count_if(pipe_.graph().inputs.begin(), pipe_.graph().inputs.end(),
                                     [](const graph::GraphInput& input) { return !input.constant; });
    add_text("m", kMargin + kUserBoxWidth / 2, top_ + kBoxHeight / 2 + 14, str_cat(count, " from the user"));
    for (int s = 0; s < stages; ++s) draw_stage(s);
    for (const auto& [way, bundle] : bundles_) draw_bundle(way.first, way.second, bundle);
    for (const graph::SharedSlot& slot : pipe_.split().shared) {
      for (std::size_t i = 1; i < slot.stages.size(); ++i) {
        arc("w t", slot.stages[i - 1].value, slot.stages[i].value, false,
            shortened(join(slot.names, " = "), 44), join(slot.names, " = ") + ": held by both stages");
      }
    }
    return out_ + "</svg>\n";
  }

 private:
  //! The left edge of a stage's box.
  static int left(int stage) {
    return kMargin + kUserBoxWidth + kBoxGap + stage * (kBoxWidth + kBoxGap) - (stage < 0 ? 0 : 60);
  }
  static int middle(int stage) {
    return stage < 0 ? kMargin + kUserBoxWidth / 2 : left(stage) + kBoxWidth / 2;
  }

  void rect(const std::string& kind, int x, int width) {
    out_ += str_cat("<rect class=\"", kind, "\" x=\"", x, "\" y=\"", top_, "\" width=\"", width,
                    "\" height=\"", kBoxHeight, "\" rx=\"7\"/>\n");
  }
  void add_text(const std::string& kind, int x, int y, const std::string& text) {
    out_ +=
        str_cat("<text class=\"", kind, "\" x=\"", x, "\" y=\"", y, "\">", escape_markup(text), "</text>\n");
  }

  void draw_stage(int stage) {
    const graph::Graph& graph = pipe_.stage_graph(StageId(stage));
    const graph::GraphCosts costs = graph_costs(graph);
    const std::vector<std::string> modules = pipe_.stage_module_paths(StageId(stage));
    rect("box", left(stage), kBoxWidth);
    const int x = left(stage) + 12;
    add_text("h", x, top_ + 22, str_cat("stage ", stage));
    std::string span = modules.empty() ? "" : modules.front();
    if (modules.size() > 1) span += " … " + modules.back();
    add_text("s", x, top_ + 39, shortened(span, 30));
    add_text("", x, top_ + 57, str_cat(graph.nodes.size(), " operators"));
    add_text("", x, top_ + 73, format_bytes(costs.parameter_bytes) + " of parameters");
    add_text("", x, top_ + 89,
             number_text(costs.flops) + "FLOP, " + format_bytes(costs.activation_bytes) + " kept");
  }

  void draw_bundle(int from, int to, const Bundle& bundle) {
    const std::string title = join(bundle.values, "\n");
    const std::string label = bundle.values.size() == 1
                                  ? bundle.values[0]
                                  : str_cat(bundle.values.size(), " values, ", format_bytes(bundle.bytes));
    if (to - from > 1) {
      arc(from < 0 ? "w u" : "w k", from, to, from >= 0, shortened(label, 44), title);
      return;
    }
    const int start = from < 0 ? kMargin + kUserBoxWidth : left(from) + kBoxWidth, end = left(to),
              y = top_ + kBoxHeight / 2;
    out_ +=
        str_cat("<g><title>", escape_markup(title), "</title><path class=\"w\" marker-end=\"url(#a)\" d=\"M",
                start, " ", y, "H", end, "\"/></g>\n");
    // The name is above the arrow, the type below.
    const std::size_t space = bundle.values.size() == 1 ? label.find(' ') : label.find(", ");
    const int x = (start + end) / 2;
    const auto limit = static_cast<std::size_t>((end - start) / 6);
    add_text("m s", x, y - 6, shortened(label.substr(0, space), limit));
    if (space != std::string::npos)
      add_text("m s", x, y + 14, shortened(label.substr(space + (label[space] == ',' ? 2 : 1)), limit));
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

  const Pipe& pipe_;
  std::map<std::pair<int, int>, Bundle> bundles_;
  int top_ = 0, below_ = 0;
  std::string out_;
};

}  // namespace

std::string Pipe::svg() const {
  return Picture(*this).text();
}

}  // namespace penstock::pipe
