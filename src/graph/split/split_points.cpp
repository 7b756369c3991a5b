// Finds legal and requested split positions, and the values that stages recompute instead of sending.
#include "graph/split/split_points.h"

#include "base/text.h"
#include "graph/ir/module_path.h"
#include "graph/passes/passes.h"

#include <penstock/base/error.h>
#include <penstock/graph/split.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <set>

namespace penstock::graph {
namespace {

constexpr std::size_t kNoStage = static_cast<std::size_t>(-1);

std::string location_of(const Node& node) {
  return node.name() + (node.module.empty() ? "" : " of module " + node.module);
}

//! A range of nodes that must stay in one stage, and the reason.
struct InseparableRange {
  std::size_t first = kNoStage;  //!< no split position may be in first+1 … last
  std::size_t last = 0;
  std::string why;
};

//! All uses of written memory, from its creation to the last write, must be in one stage. If a tensor from
//! outside the graph is written, only one stage may use it. The same holds for overlapping weights, which the
//! optimizer writes.
std::vector<InseparableRange> shared_memory_ranges(const Graph& graph) {
  struct Use {
    std::size_t birth = kNoStage, first = kNoStage, last = 0, last_write = kNoStage;
    bool outside = false, trained = false;
    std::vector<std::string> slots;
  };
  std::size_t storages = 0;  // those of a stage keep the numbers of the unsplit graph
  for (const Value& value : graph.values)
    if (value.storage) storages = std::max(storages, static_cast<std::size_t>(*value.storage) + 1);
  std::vector<Use> uses(storages);
  const auto use_of = [&](ValueId id) -> Use* {
    const std::optional<std::int32_t> storage = graph.value(id).storage;
    return storage ? &uses[static_cast<std::size_t>(*storage)] : nullptr;
  };
  for (const Slot& slot : graph.slots) {
    Use* use = use_of(slot.value);
    if (!use) continue;
    use->outside = true;
    use->trained = use->trained || slot.requires_grad;
    use->slots.push_back(slot.names[0]);
  }
  for (const GraphInput& input : graph.inputs) {
    if (Use* use = use_of(input.value)) use->outside = true;
  }
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto touch = [&](ValueId id) {
      Use* use = use_of(id);
      if (!use) return;
      if (use->birth == kNoStage) use->birth = i;
      use->last = i;
    };
    for_each_read(graph.nodes[i], touch);
    for_each_result(graph.nodes[i], touch);
    for (const ValueId id : written_values(graph.nodes[i])) {
      if (Use* use = use_of(id)) use->last_write = i;
    }
  }
  std::vector<InseparableRange> ranges;
  for (const Use& use : uses) {
    if (use.last_write == kNoStage) {
      if (use.trained && use.slots.size() > 1 && use.birth != kNoStage)
        ranges.push_back(
            {use.birth, use.last,
             join(use.slots, " and ") + " share memory, and stages on both sides would train them"});
      continue;
    }
    const Node& writer = graph.nodes[use.last_write];
    if (use.outside) {
      ranges.push_back({use.birth, use.last,
                        location_of(writer) + " writes a tensor that stages on both sides would use"});
    } else {
      ranges.push_back({use.birth, use.last_write,
                        location_of(writer) + " writes in place to a tensor that " +
                            location_of(graph.nodes[use.birth]) + " created in an earlier stage"});
    }
  }
  return ranges;
}

//! Numbers read from tensor elements cannot be sent to another stage: messages are tensors.
std::vector<InseparableRange> scalar_ranges(const Graph& graph) {
  std::vector<InseparableRange> ranges;
  std::vector<std::size_t> range_of(graph.values.size(), kNoStage);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    for_each_read(node, [&](ValueId id) {
      const std::size_t range = range_of[id.index()];
      if (range != kNoStage) ranges[range].last = i;
    });
    if (node.kind != Node::Kind::Op || is_size_query(node)) continue;
    for_each_result(node, [&](ValueId id) {
      if (graph.value(id).type == ValueType::Tensor) return;
      range_of[id.index()] = ranges.size();
      ranges.push_back(
          {i, i,
           "a number that " + location_of(node) + " reads from a tensor would cross the stage boundary"});
    });
  }
  return ranges;
}

//! Functional mutations: a written slot belongs to the stage that computes its new value.
std::vector<InseparableRange> mutation_ranges(const Graph& graph) {
  std::vector<InseparableRange> ranges;
  for (const Mutation& mutation : graph.mutations) {
    InseparableRange range{.why = "%" + graph.value(mutation.target).name +
                                  " is read and written on both sides"};
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      bool touches = false;
      for_each_read(graph.nodes[i], [&](ValueId id) { touches = touches || id == mutation.target; });
      for_each_result(graph.nodes[i], [&](ValueId id) { touches = touches || id == mutation.from; });
      if (!touches) continue;
      if (range.first == kNoStage) range.first = i;
      range.last = i;
    }
    if (range.first != kNoStage) ranges.push_back(range);
  }
  return ranges;
}

std::size_t value_index(ValueId id) {
  return id.index();
}

std::set<std::optional<std::int32_t>> written_storages(const Graph& graph) {
  std::set<std::optional<std::int32_t>> written;
  for (const Node& node : graph.nodes) {
    for (const ValueId id : written_values(node)) written.insert(graph.value(id).storage);
  }
  for (const Mutation& mutation : graph.mutations) written.insert(graph.value(mutation.target).storage);
  return written;
}

}  // namespace

bool is_size_query(const Node& node) {
  return node.kind == Node::Kind::Op && node.op->operator_name().name.starts_with("aten::sym_");
}

std::vector<bool> recomputed_values(const Graph& graph) {
  const std::set<std::optional<std::int32_t>> written = written_storages(graph);
  std::vector<bool> weight(graph.values.size(), false), recomputed(graph.values.size(), false);
  std::set<std::optional<std::int32_t>> weights;
  for (const Slot& slot : graph.slots) {
    const std::optional<std::int32_t> storage = graph.value(slot.value).storage;
    if (written.contains(storage)) continue;
    weight[value_index(slot.value)] = true;
    weights.insert(storage);
  }
  for (const Node& node : graph.nodes) {
    if (node.kind != Node::Kind::Op || has_side_effects(node) || is_size_query(node)) continue;
    bool constant = true, of_weights = true;
    for_each_read(node, [&](ValueId id) {
      if (graph.value(id).type != ValueType::Tensor) return;
      constant = constant && recomputed[value_index(id)] && !weight[value_index(id)];
      of_weights = of_weights && (recomputed[value_index(id)] || weight[value_index(id)]);
    });
    for_each_result(node, [&](ValueId id) {
      const Value& value = graph.value(id);
      const bool view = of_weights && weights.contains(value.storage);
      if (value.type != ValueType::Tensor || written.contains(value.storage) || !(constant || view)) return;
      recomputed[value_index(id)] = true;
      weight[value_index(id)] = view;
    });
  }
  return recomputed;
}

bool is_recomputed(const Node& node, const std::vector<bool>& recomputed) {
  bool all = node.kind == Node::Kind::Op, any = false;
  for_each_result(node, [&](ValueId id) {
    any = true;
    all = all && recomputed[value_index(id)];
  });
  return all && any;
}

std::vector<std::string> split_obstacles(const Graph& graph) {
  std::vector<std::string> why(graph.nodes.size() + 1);
  for (const auto& ranges : {shared_memory_ranges(graph), scalar_ranges(graph), mutation_ranges(graph)}) {
    for (const InseparableRange& range : ranges) {
      for (std::size_t position = range.first + 1; position <= range.last; ++position) {
        if (why[position].empty()) why[position] = range.why;
      }
    }
  }
  return why;
}

std::optional<std::string> why_not_splittable(const Graph& graph, std::size_t node) {
  if (node > graph.nodes.size()) return "there is no such node";
  std::string why = split_obstacles(graph)[node];
  if (why.empty()) return std::nullopt;
  return why;
}

SplitPositions legal_split_positions(const Graph& graph) {
  const std::vector<std::string> why = split_obstacles(graph);
  const std::vector<bool> recomputed = recomputed_values(graph);
  const auto works = [&](const Node& node) {
    return node.kind == Node::Kind::Op && !is_size_query(node) && !is_recomputed(node, recomputed);
  };
  std::size_t first = 0, last = graph.nodes.size();
  while (first < last && !works(graph.nodes[first])) ++first;
  while (last > first && !works(graph.nodes[last - 1])) --last;
  SplitPositions positions;
  for (std::size_t position = first + 1; position < last; ++position) {
    if (why[position].empty() && works(graph.nodes[position])) positions.push_back(position);
  }
  return positions;
}

SplitPositions split_at_marks(const Graph& graph) {
  SplitPositions positions;
  bool work = false;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].kind != Node::Kind::Split) {
      work = work || graph.nodes[i].kind == Node::Kind::Op;
      continue;
    }
    if (work) positions.push_back(i + 1);
    work = false;
  }
  if (!positions.empty() && !work) positions.pop_back();
  return positions;
}

std::vector<std::string> module_paths(const Graph& graph) {
  std::vector<std::string> paths;
  std::set<std::string> seen;
  for (const Node& node : graph.nodes) {
    for (std::size_t dot = 0; !node.module.empty() && dot != std::string::npos;) {
      dot = node.module.find('.', dot + 1);
      const std::string path = node.module.substr(0, dot);
      if (seen.insert(path).second) paths.push_back(path);
    }
  }
  return paths;
}

Graph annotate_split_points(const Graph& graph, const std::map<std::string, SplitPoint>& points) {
  const SplitPositions positions = split_at_modules(graph, points);
  Graph marked = graph;
  for (auto position = positions.rbegin(); position != positions.rend(); ++position) {
    const bool before = graph.nodes[*position - 1].kind == Node::Kind::Split;
    if (before || graph.nodes[*position].kind == Node::Kind::Split) continue;
    marked.nodes.insert(marked.nodes.begin() + static_cast<std::ptrdiff_t>(*position),
                        Node{.kind = Node::Kind::Split, .module = {}});
  }
  return marked;
}

SplitPositions split_at_modules(const Graph& graph, const std::map<std::string, SplitPoint>& points) {
  std::set<std::size_t> positions;
  for (const auto& [name, point] : points) {
    const auto [module, wanted] = parse_module_call(name);
    struct Extent {
      std::size_t first, last;
    };
    std::map<int, Extent> calls;
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      if (graph.nodes[i].kind == Node::Kind::Split || !within(graph.nodes[i].module, module)) continue;
      const int call = call_of(graph.nodes[i], module);
      if (wanted && call != *wanted) continue;
      calls.try_emplace(call, Extent{i, i}).first->second.last = i;
    }
    if (calls.empty()) {
      const std::vector<std::string> paths = module_paths(graph);
      constexpr std::size_t shown = 8;
      std::vector<std::string> first(
          paths.begin(), paths.begin() + static_cast<std::ptrdiff_t>(std::min(shown, paths.size())));
      if (paths.size() > shown) first.emplace_back("…");
      throw UsageError("no operator ran in module " + quote(name, 200), {},
                       did_you_mean(module, paths, "the modules are " + join(first, ", ")));
    }
    for (const auto& [call, extent] : calls)
      positions.insert(point == SplitPoint::Beginning ? extent.first : extent.last + 1);
  }
  // A split position needs at least one node other than a mark before and after it.
  const auto is_work = [](const Node& node) { return node.kind != Node::Kind::Split; };
  std::erase_if(positions, [&](std::size_t position) {
    const auto here = graph.nodes.begin() + static_cast<std::ptrdiff_t>(position);
    return std::none_of(graph.nodes.begin(), here, is_work) || std::none_of(here, graph.nodes.end(), is_work);
  });
  return {positions.begin(), positions.end()};
}

}  // namespace penstock::graph
