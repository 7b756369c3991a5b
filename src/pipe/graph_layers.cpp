// Groups nodes into layers, and finds what the recomputation of a module saves in each of them.
#include "pipe/graph_layers.h"

#include "graph/passes/graph_costs.h"
#include "pipe/balance.h"
#include "pipe/recomputed_graph.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <string>
#include <utility>

namespace penstock::pipe {
namespace {

//! Returns at most `most` - 1 legal split positions at about equal intervals of time. Picks the position with
//! the fewest crossing bytes in each interval.
graph::SplitPositions pick_positions(const graph::Graph& graph, const std::vector<std::uint64_t>& crossing,
                                     std::span<const double> seconds, std::size_t most) {
  if (most < 2) return {};
  graph::SplitPositions legal = legal_split_positions(graph);
  if (legal.size() < most) return legal;
  std::vector<double> sums(seconds.size() + 1, 0);
  std::partial_sum(seconds.begin(), seconds.end(), sums.begin() + 1);
  graph::SplitPositions positions;
  std::size_t interval = most;  // the interval of the previous position
  for (const std::size_t position : legal) {
    const double fraction = sums.back() > 0 ? sums[position] / sums.back() : 0;
    const auto this_interval = static_cast<std::size_t>(fraction * static_cast<double>(most - 1));
    if (this_interval != interval && positions.size() + 1 < most) {
      positions.push_back(position);
    } else if (this_interval == interval && crossing[position] < crossing[positions.back()]) {
      positions.back() = position;
    }
    interval = this_interval;
  }
  return positions;
}

plan::Layer layer_of(const graph::Graph& graph, std::size_t begin, std::size_t end,
                     std::span<const double> seconds, const std::vector<bool>& recomputed) {
  plan::Layer layer{.name = {}, .costs = {.forward = 0, .input = 0, .weight = 0, .activation_bytes = 0}};
  for (std::size_t n = begin; n < end; ++n) {
    const graph::Node& node = graph.nodes[n];
    layer.costs.forward += seconds[n];
    layer.costs.activation_bytes += node_result_bytes(graph, node);
    bool works = false;  // the first node with a tensor result that is not recomputed names the layer
    for_each_result(node, [&](graph::ValueId id) {
      works = works || (graph.value(id).type == graph::ValueType::Tensor && !recomputed[id.index()]);
    });
    if (!layer.name.empty() || !works) continue;
    layer.name = (node.module.empty() ? "" : node.module + " ") + node.name();
  }
  layer.costs.input = layer.costs.forward;
  return layer;
}

void add_parameters(GraphLayer& layer, const graph::Graph& graph) {
  plan::StageCosts& costs = layer.layer.costs;
  for (const std::size_t index : layer.parameters) {
    const graph::Slot& slot = graph.slots[index];
    const auto& meta = graph.value(slot.value).meta;
    if (!meta) continue;
    costs.parameter_bytes += meta->nbytes();
    if (slot.requires_grad) costs.gradient_bytes += meta->nbytes();
  }
  costs.weight = costs.gradient_bytes > 0 ? costs.forward : 0;
}

bool is_numbered(const std::string& path) {
  const std::string last = path.substr(path.rfind('.') + 1);
  return !last.empty() &&
         std::all_of(last.begin(), last.end(), [](unsigned char c) { return std::isdigit(c); });
}

// The outermost numbered modules; without any, all modules without a parent.
std::vector<std::string> candidate_modules(const graph::Graph& graph) {
  const std::vector<std::string> paths = module_paths(graph);
  std::vector<std::string> outer, numbered;
  for (const std::string& path : paths) {
    const auto contains = [&](const std::string& other) { return path.starts_with(other + "."); };
    if (path.find('.') == std::string::npos) outer.push_back(path);
    if (is_numbered(path) && std::none_of(numbered.begin(), numbered.end(), contains))
      numbered.push_back(path);
  }
  return numbered.empty() ? outer : numbered;
}

bool can_recompute(const graph::Graph& graph, const std::string& module) {
  try {
    check_recomputed_pieces(graph, {module});
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

// Bytes of the results of nodes `begin` to `end` that no other node reads.
std::uint64_t inner_bytes(const graph::Graph& graph, std::size_t begin, std::size_t end) {
  std::vector<bool> kept(graph.values.size(), false);
  const auto keep = [&](graph::ValueId id) { kept[id.index()] = true; };
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (i < begin || i >= end) for_each_read(graph.nodes[i], keep);
  for (const graph::Arg& output : graph.outputs) for_each_value(output, keep);
  std::uint64_t bytes = 0;
  for (std::size_t i = begin; i < end; ++i) {
    bool is_output = false;
    for_each_result(graph.nodes[i], [&](graph::ValueId id) { is_output = is_output || kept[id.index()]; });
    if (!is_output) bytes += node_result_bytes(graph, graph.nodes[i]);
  }
  return bytes;
}

plan::RecomputableModule savings_of(const graph::Graph& graph, const std::string& module,
                                    std::span<const GraphLayer> layers, std::span<const double> seconds) {
  plan::RecomputableModule result{.name = module};
  const std::vector<GraphPiece> pieces = recomputed_pieces(graph, {module});
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const std::size_t next = l + 1 < layers.size() ? layers[l + 1].position : graph.nodes.size();
    plan::RecomputableModule::Part part{.layer = static_cast<int>(l)};
    for (const GraphPiece& piece : pieces) {
      const std::size_t begin = std::max(piece.begin, layers[l].position), end = std::min(piece.end, next);
      if (!piece.recomputed || begin >= end) continue;
      part.bytes += inner_bytes(graph, begin, end);
      for (std::size_t i = begin; i < end; ++i) part.time += seconds[i];
    }
    if (part.bytes > 0 || part.time > 0) result.parts.push_back(part);
  }
  return result;
}

}  // namespace

std::vector<GraphLayer> graph_layers(const graph::Graph& graph, std::span<const double> seconds,
                                     std::size_t most) {
  if (seconds.size() != graph.nodes.size()) throw UsageError("`seconds` must have one entry per node");
  const std::vector<std::uint64_t> crossing = crossing_bytes(graph);
  const std::vector<std::vector<std::size_t>> parameters = first_reads_of_parameters(graph);
  const std::vector<bool> recomputed = recomputed_values(graph);
  graph::SplitPositions bounds = pick_positions(graph, crossing, seconds, most);
  bounds.insert(bounds.begin(), 0);
  bounds.push_back(graph.nodes.size());
  std::vector<GraphLayer> layers;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    const std::size_t begin = bounds[i], end = bounds[i + 1];
    GraphLayer layer{.layer = layer_of(graph, begin, end, seconds, recomputed), .position = begin};
    for (std::size_t n = begin; n < end; ++n)
      layer.parameters.insert(layer.parameters.end(), parameters[n].begin(), parameters[n].end());
    add_parameters(layer, graph);
    layer.layer.costs.input_bytes = crossing[begin];
    layer.layer.costs.output_bytes = crossing[end];
    layers.push_back(std::move(layer));
  }
  return layers;
}

std::vector<plan::RecomputableModule> recomputable_modules(const graph::Graph& graph,
                                                           std::span<const GraphLayer> layers,
                                                           std::span<const double> seconds) {
  std::vector<std::pair<double, plan::RecomputableModule>> found;  // with the bytes per operation
  for (const std::string& module : candidate_modules(graph)) {
    if (!can_recompute(graph, module)) continue;
    plan::RecomputableModule one = savings_of(graph, module, layers, seconds);
    const RecomputedCosts costs = recomputed_costs(graph, {module});  // the same for equal modules
    if (one.bytes() > 0)
      found.emplace_back(static_cast<double>(costs.bytes) / std::max(costs.flops, 1.0), std::move(one));
  }
  const auto saves_more = [](const auto& a, const auto& b) { return a.first > b.first; };
  std::stable_sort(found.begin(), found.end(), saves_more);
  std::vector<plan::RecomputableModule> modules;
  for (auto& [ratio, module] : found) modules.push_back(std::move(module));
  return modules;
}

}  // namespace penstock::pipe
