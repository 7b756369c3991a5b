// Treats the nodes between neighboring legal split positions as layers and partitions them into stages.
#include "pipe/balance.h"

#include "base/text.h"
#include "graph/passes/graph_costs.h"

#include <penstock/base/error.h>
#include <penstock/plan/partition.h>

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace penstock::pipe {
namespace {

//! The exact search is quadratic in the number of layers; more candidates do not pay off.
constexpr std::size_t kMaxCandidates = 300;

//! Returns the legal split positions; if there are too many, those where the fewest bytes cross.
graph::SplitPositions candidates(const graph::Graph& graph, const std::vector<std::uint64_t>& crossing) {
  graph::SplitPositions positions = legal_split_positions(graph);
  if (positions.size() <= kMaxCandidates) return positions;
  std::stable_sort(positions.begin(), positions.end(),
                   [&](std::size_t a, std::size_t b) { return crossing[a] < crossing[b]; });
  positions.resize(kMaxCandidates);
  std::sort(positions.begin(), positions.end());
  return positions;
}

}  // namespace

std::vector<std::vector<std::size_t>> first_reads_of_parameters(const graph::Graph& graph) {
  const std::vector<bool> recomputed = recomputed_values(graph);
  // The parameters that a value is a view of: a stage that reads the view holds the parameter.
  std::vector<std::vector<std::size_t>> parameters(graph.values.size());
  for (std::size_t i = 0; i < graph.slots.size(); ++i)
    if (graph.slots[i].kind == graph::Slot::Kind::Parameter) parameters[graph.slots[i].value.index()] = {i};
  std::vector<bool> is_read(graph.slots.size(), false);
  std::vector<std::vector<std::size_t>> first(graph.nodes.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    std::vector<std::size_t> read;
    for_each_read(graph.nodes[i], [&](graph::ValueId id) {
      const auto& under = parameters[id.index()];
      read.insert(read.end(), under.begin(), under.end());
    });
    if (read.empty()) continue;
    bool view = false;
    for_each_result(graph.nodes[i], [&](graph::ValueId id) {
      if (!recomputed[id.index()]) return;
      view = true;
      parameters[id.index()] = read;
    });
    if (view) continue;
    for (const std::size_t slot : read) {
      if (!is_read[slot]) first[i].push_back(slot);
      is_read[slot] = true;
    }
  }
  return first;
}

std::vector<double> parameter_weights(const graph::Graph& graph) {
  std::vector<double> weights;
  for (const std::vector<std::size_t>& slots : first_reads_of_parameters(graph)) {
    weights.push_back(0);
    for (const std::size_t slot : slots)
      if (const auto& meta = graph.value(graph.slots[slot].value).meta)
        weights.back() += static_cast<double>(meta->nbytes());
  }
  return weights;
}

std::vector<double> flop_weights(const graph::Graph& graph) {
  std::vector<double> weights;
  weights.reserve(graph.nodes.size());
  for (const graph::Node& node : graph.nodes) weights.push_back(node_flops(graph, node));
  return weights;
}

std::vector<std::uint64_t> crossing_bytes(const graph::Graph& graph) {
  const std::size_t count = graph.nodes.size();
  const std::vector<bool> recomputed = recomputed_values(graph);
  constexpr auto nowhere = static_cast<std::size_t>(-1);
  std::vector<std::size_t> birth(graph.values.size(), nowhere), last(graph.values.size(), 0);
  for (std::size_t i = 0; i < count; ++i) {
    for_each_read(graph.nodes[i], [&](graph::ValueId id) { last[id.index()] = i; });
    for_each_result(graph.nodes[i], [&](graph::ValueId id) { birth[id.index()] = i; });
  }
  std::vector<std::int64_t> change(count + 2, 0);
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (birth[v] == nowhere || last[v] <= birth[v] || !graph.values[v].meta || recomputed[v]) continue;
    const auto bytes = static_cast<std::int64_t>(graph.values[v].meta->nbytes());
    change[birth[v] + 1] += bytes;
    change[last[v] + 1] -= bytes;
  }
  std::vector<std::uint64_t> crossing(count + 1, 0);
  std::int64_t now = 0;
  for (std::size_t i = 0; i <= count; ++i) {
    now += change[i];
    crossing[i] = static_cast<std::uint64_t>(now);
  }
  return crossing;
}

graph::SplitPositions balanced_split(const graph::Graph& graph, int stages, std::span<const double> weights) {
  if (stages < 1) throw UsageError("a pipeline needs at least one stage");
  if (weights.size() != graph.nodes.size()) throw UsageError("`weights` must have one entry per node");
  if (stages == 1) return {};
  const std::vector<std::uint64_t> crossing = crossing_bytes(graph);
  const graph::SplitPositions allowed = candidates(graph, crossing);
  if (allowed.size() + 1 < static_cast<std::size_t>(stages)) {
    throw UsageError(str_cat("the model can be split at only ", allowed.size(),
                             " positions, which is too few for ", stages, " stages"),
                     {}, str_cat("use at most ", allowed.size() + 1, " stages"));
  }
  std::vector<double> sums(graph.nodes.size() + 1, 0);
  for (std::size_t i = 0; i < weights.size(); ++i) sums[i + 1] = sums[i] + weights[i];
  std::vector<plan::Layer> layers;
  for (std::size_t i = 0; i <= allowed.size(); ++i) {
    const std::size_t begin = i == 0 ? 0 : allowed[i - 1],
                      end = i < allowed.size() ? allowed[i] : graph.nodes.size();
    layers.push_back(
        {.name = std::to_string(begin),
         .costs = {.forward = sums[end] - sums[begin], .input = 0, .weight = 0, .activation_bytes = 0}});
  }
  plan::PartitionOptions options;
  for (int s = 0; s < stages; ++s) options.rank_of_stage.emplace_back(s);
  const auto partition = partition_layers(layers, options);
  if (!partition) throw UsageError(str_cat("the model cannot be split into ", stages, " stages"));
  graph::SplitPositions positions;
  for (int s = 1; s < stages; ++s) {
    positions.push_back(
        allowed[static_cast<std::size_t>(partition->first_layer[static_cast<std::size_t>(s)]) - 1]);
  }
  // Move each split position to where the fewest bytes cross, without changing the weights of the stages.
  for (std::size_t c = 0; c < positions.size(); ++c) {
    const std::size_t low = c == 0 ? 0 : positions[c - 1],
                      high = c + 1 < positions.size() ? positions[c + 1] : graph.nodes.size();
    for (const std::size_t candidate : allowed) {
      const bool between = candidate > low && candidate < high;
      if (between && sums[candidate] == sums[positions[c]] && crossing[candidate] < crossing[positions[c]])
        positions[c] = candidate;
    }
  }
  return positions;
}

plan::Costs stage_costs(const graph::SplitGraph& split, double flops_per_second) {
  plan::Costs costs;
  for (const graph::StageGraph& one : split.stages) {
    const graph::Graph& graph = one.graph;
    const graph::GraphCosts known = graph_costs(graph);
    plan::StageCosts stage;
    stage.forward = known.flops / flops_per_second;
    stage.input = stage.forward;
    stage.weight = stage.forward;
    stage.activation_bytes = known.activation_bytes;
    stage.parameter_bytes = known.parameter_bytes;
    stage.gradient_bytes = known.parameter_bytes;
    const auto bytes_of = [&](graph::ValueId id) {
      const auto& meta = graph.value(id).meta;
      return meta ? static_cast<std::uint64_t>(meta->nbytes()) : 0;
    };
    for (const graph::GraphInput& input : graph.inputs) stage.input_bytes += bytes_of(input.value);
    costs.stages.push_back(stage);
  }
  for (std::size_t s = 0; s < split.stages.size(); ++s) {
    for (std::size_t i = 0; i < split.stages[s].sources.size(); ++i) {
      const auto* from = std::get_if<graph::FromStage>(&split.stages[s].sources[i]);
      if (!from) continue;
      const graph::Graph& graph = split.stages[s].graph;
      const auto& meta = graph.value(graph.inputs[i].value).meta;
      const std::uint64_t bytes = meta ? meta->nbytes() : 0;
      if (from->stage.index() + 1 == s) {
        costs.stages[from->stage.index()].output_bytes += bytes;
      } else {
        costs.skip_bytes[{from->stage, StageId(static_cast<std::int64_t>(s))}] += bytes;
      }
    }
  }
  return costs;
}

}  // namespace penstock::pipe
