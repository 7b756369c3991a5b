// The stages as a diagram: a box per stage, arrows for the values between them, dashed arcs for tied weights.
#include "base/text.h"
#include "graph/passes/graph_costs.h"
#include "view/box_diagram.h"

#include <penstock/pipe/pipe.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace penstock::pipe {
namespace {

constexpr int kUser = -1;

std::string scaled_text(double value) {
  constexpr std::array units = {"", " k", " M", " G", " T", " P"};
  std::size_t unit = 0;
  for (; value >= 1000 && unit < 5; ++unit) value /= 1000;
  return unit == 0 ? formatted("%.0f", value) : formatted("%.3g%s", value, units[unit]);
}

//! The values that one stage (or the user) sends to another.
struct Bundle {
  std::vector<std::string> values;
  std::uint64_t bytes = 0;
};

std::map<std::pair<int, int>, Bundle> bundles_of(const Pipe& pipe) {
  std::map<std::pair<int, int>, Bundle> bundles;
  for (int s = 0; s < pipe.num_stages(); ++s) {
    const graph::Graph& graph = pipe.stage_graph(StageId(s));
    const auto& sources = pipe.split().stage(StageId(s)).sources;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const auto* from = std::get_if<graph::FromStage>(&sources[i]);
      const graph::Value& value = graph.value(graph.inputs[i].value);
      Bundle& bundle = bundles[{from ? from->stage.value : kUser, s}];
      bundle.values.push_back(value.name + (value.meta ? " " + to_string(*value.meta) : ""));
      bundle.bytes += value.meta ? value.meta->nbytes() : 0;
    }
  }
  return bundles;
}

view::DiagramArrow arrow_of(int from, int to, const Bundle& bundle) {
  view::DiagramArrow arrow{.from = from, .to = to};
  arrow.title = join(bundle.values, "\n");
  if (bundle.values.size() == 1) {
    arrow.label = bundle.values[0];
    const std::size_t space = arrow.label.find(' ');
    arrow.name = arrow.label.substr(0, space);
    if (space != std::string::npos) arrow.detail = arrow.label.substr(space + 1);
  } else {
    arrow.name = str_cat(bundle.values.size(), " values");
    arrow.detail = format_bytes(bundle.bytes);
    arrow.label = arrow.name + ", " + arrow.detail;
  }
  return arrow;
}

view::DiagramBox box_of(const Pipe& pipe, StageId stage) {
  const graph::Graph& graph = pipe.stage_graph(stage);
  const graph::GraphCosts costs = graph_costs(graph);
  const std::vector<std::string> modules = pipe.stage_module_paths(stage);
  view::DiagramBox box{.heading = str_cat("stage ", stage.value)};
  if (!modules.empty()) box.subtitle = modules.front();
  if (modules.size() > 1) box.subtitle += " … " + modules.back();
  box.lines = {str_cat(graph.nodes.size(), " operators"),
               format_bytes(costs.parameter_bytes) + " of parameters",
               scaled_text(costs.flops) + "FLOP, " + format_bytes(costs.activation_bytes) + " kept"};
  return box;
}

}  // namespace

std::string Pipe::svg() const {
  view::BoxDiagram diagram;
  const auto& inputs = graph().inputs;
  const auto count = std::count_if(inputs.begin(), inputs.end(),
                                   [](const graph::GraphInput& input) { return !input.constant; });
  diagram.source_heading = "inputs";
  diagram.source_line = str_cat(count, " from the user");
  for (int s = 0; s < num_stages(); ++s) diagram.boxes.push_back(box_of(*this, StageId(s)));
  for (const auto& [ends, bundle] : bundles_of(*this))
    diagram.arrows.push_back(arrow_of(ends.first, ends.second, bundle));
  for (const graph::SharedSlot& slot : split().shared) {
    view::DiagramTie tie;
    for (const StageId stage : slot.stages) tie.boxes.push_back(stage.value);
    tie.label = join(slot.names, " = ");
    tie.title = tie.label + ": held by both stages";
    diagram.ties.push_back(std::move(tie));
  }
  return to_svg(diagram);
}

}  // namespace penstock::pipe
