// Builds the stage graphs in order. A value that a stage reads but does not produce becomes an input or a
// slot, or is recomputed.
#include "base/text.h"
#include "graph/passes/passes.h"
#include "graph/split/split_points.h"

#include <penstock/base/error.h>
#include <penstock/graph/split.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <set>

namespace penstock::graph {
namespace {

using c10::IValue;

std::size_t index_of(ValueId id) {
  return id.index();
}

//! The origin of each value in the unsplit graph.
struct Origins {
  enum class Kind : std::uint8_t { Node, Input, Slot };
  struct Origin {
    Kind kind = Kind::Node;
    std::size_t index = 0;  //!< index of the node, input or slot
  };

  std::vector<Origin> of;
  std::vector<bool> recomputed;  //!< see `recomputed_values`

  explicit Origins(const Graph& graph) : of(graph.values.size()), recomputed(recomputed_values(graph)) {
    for (std::size_t i = 0; i < graph.inputs.size(); ++i)
      of[index_of(graph.inputs[i].value)] = {Kind::Input, i};
    for (std::size_t i = 0; i < graph.slots.size(); ++i) of[index_of(graph.slots[i].value)] = {Kind::Slot, i};
    for (std::size_t i = 0; i < graph.nodes.size(); ++i)
      for_each_result(graph.nodes[i], [&](ValueId id) { of[index_of(id)] = {Kind::Node, i}; });
  }
};

class StageBuilder {
 public:
  StageBuilder(const Graph& unsplit, const Origins& origins, const std::vector<bool>& transmitted,
               std::vector<StageGraph>& stages, const std::vector<int>& stage_of_node, int stage)
      : unsplit_(unsplit),
        origins_(origins),
        transmitted_(transmitted),
        stages_(stages),
        stage_of_node_(stage_of_node),
        stage_(stage),
        names_(unsplit.values.size(), Arg{IValue()}),
        known_(unsplit.values.size(), false) {}

  void build(std::size_t begin, std::size_t end, bool last) {
    const std::vector<bool> kept = nodes_to_keep(begin, end, last);
    for (std::size_t i = begin; i < end; ++i) {
      if (kept[i - begin]) for_each_read(unsplit_.nodes[i], [&](ValueId id) { note_sizes(id); });
    }
    for (std::size_t i = begin; i < end; ++i) {
      if (kept[i - begin] && !known_node(unsplit_.nodes[i])) copy_node(unsplit_.nodes[i]);
    }
    for (const Mutation& mutation : unsplit_.mutations) {
      if (owner(mutation.from) == stage_) {
        graph().mutations.push_back({*resolve(mutation.target).value(), *resolve(mutation.from).value()});
      }
    }
    if (last) {
      for (const Arg& output : unsplit_.outputs) {
        graph().outputs.push_back(output.value() ? resolve(*output.value()) : output);
      }
      graph().output_structure = unsplit_.output_structure;
    }
    graph().symbols = unsplit_.symbols;
  }

  //! Returns the index of the output of `stage` that carries a value of the unsplit graph.
  static int output_for(std::vector<StageBuilder>& builders, int stage, ValueId id) {
    return builders[static_cast<std::size_t>(stage)].add_output(id);
  }

  void set_peers(std::vector<StageBuilder>* peers) { peers_ = peers; }

 private:
  Graph& graph() { return stages_[static_cast<std::size_t>(stage_)].graph; }
  StageGraph& here() { return stages_[static_cast<std::size_t>(stage_)]; }

  //! Selects the nodes of the range that the stage runs. Drops marks, and recomputed nodes that only other
  //! stages read.
  std::vector<bool> nodes_to_keep(std::size_t begin, std::size_t end, bool last) const {
    std::vector<bool> read(unsplit_.values.size(), false), kept(end - begin, false);
    const auto mark = [&](ValueId id) { read[index_of(id)] = true; };
    for (const Mutation& mutation : unsplit_.mutations) mark(mutation.from);
    if (last) {
      for (const Arg& output : unsplit_.outputs) for_each_value(output, mark);
    }
    for (std::size_t i = end; i-- > begin;) {
      const Node& node = unsplit_.nodes[i];
      if (node.kind == Node::Kind::Split) continue;
      bool wanted = !is_recomputed(node, origins_.recomputed);
      for_each_result(node, [&](ValueId id) { wanted = wanted || read[index_of(id)]; });
      if (!wanted) continue;
      kept[i - begin] = true;
      for_each_read(node, mark);
    }
    return kept;
  }

  //! Whether the stage already contains the node, because an earlier node reads it.
  bool known_node(const Node& node) const {
    bool known = false;
    for_each_result(node, [&](ValueId id) { known = known || known_[index_of(id)]; });
    return known;
  }

  //! The stage whose node produces the value; -1 for inputs and slots.
  int owner(ValueId id) const {
    const auto& origin = origins_.of[index_of(id)];
    return origin.kind == Origins::Kind::Node ? stage_of_node_[origin.index] : -1;
  }

  int add_output(ValueId id) {
    const auto [it, fresh] = outputs_.try_emplace(id.value, static_cast<int>(graph().outputs.size()));
    if (!fresh) return it->second;
    const bool slot = origins_.of[index_of(id)].kind == Origins::Kind::Slot;
    graph().outputs.push_back({slot ? alias_of(id) : names_[index_of(id)]});
    return it->second;
  }

  //! Sends a parameter through an alias operator, so that its gradient returns through the stage's backward,
  //! full or split, like any other output gradient.
  Arg alias_of(ValueId id) {
    Value value = unsplit_.value(id);
    value.name += "_sent";
    const ValueId sent = graph().add_value(std::move(value));
    graph().nodes.push_back({.op = find_operator("aten::alias"),
                             .args = {names_[index_of(id)]},
                             .results = {{.ids = {sent}}},
                             .module = {}});
    return {sent};
  }

  //! The earlier stage that holds a transmitted parameter; -1 if there is none.
  int holder(std::size_t slot) const {
    if (!transmitted_[slot]) return -1;
    for (int s = 0; s < stage_; ++s) {
      const auto& held = stages_[static_cast<std::size_t>(s)].slots;
      if (std::find(held.begin(), held.end(), static_cast<int>(slot)) != held.end()) return s;
    }
    return -1;
  }

  //! Notes the sizes of tensors that the stage receives anyway, so that they need not be recomputed.
  void note_sizes(ValueId id) {
    const Value& value = unsplit_.value(id);
    const int from = owner(id);
    if (value.type != ValueType::Tensor || !value.meta || from == stage_ || origins_.recomputed[index_of(id)])
      return;
    if (origins_.of[index_of(id)].kind == Origins::Kind::Slot) return;
    for (std::size_t d = 0; d < value.meta->sizes.size(); ++d) {
      const std::string& expression = value.meta->sizes[d].expression;
      if (!expression.empty()) sizes_.try_emplace(expression, id, static_cast<std::int64_t>(d));
    }
  }

  Arg define(ValueId id) {
    Arg defined{graph().add_value(unsplit_.value(id))};
    names_[index_of(id)] = defined;
    known_[index_of(id)] = true;
    return defined;
  }

  Arg resolve(ValueId id) {
    if (known_[index_of(id)]) return names_[index_of(id)];
    const auto& origin = origins_.of[index_of(id)];
    switch (origin.kind) {
      case Origins::Kind::Input: {
        const GraphInput& input = unsplit_.inputs[origin.index];
        if (input.constant) return {*input.constant};
        return add_input(id, FromUser{static_cast<int>(origin.index)});
      }
      case Origins::Kind::Slot: {
        if (const int from = holder(origin.index); from >= 0)
          return add_input(id, FromStage{StageId(from), output_for(*peers_, from, id)});
        Arg defined = define(id);
        Slot slot = unsplit_.slots[origin.index];
        slot.value = *defined.value();
        graph().slots.push_back(std::move(slot));
        here().slots.push_back(static_cast<int>(origin.index));
        return defined;
      }
      case Origins::Kind::Node:
        break;
    }
    const int from = owner(id);
    const Node& node = unsplit_.nodes[origin.index];
    if (unsplit_.value(id).type != ValueType::Tensor) return recompute_scalar(id, node);
    if (origins_.recomputed[index_of(id)]) {
      copy_node(node);
      return names_[index_of(id)];
    }
    return add_input(id, FromStage{StageId(from), output_for(*peers_, from, id)});
  }

  Arg add_input(ValueId id, InputSource source) {
    Arg defined = define(id);
    graph().inputs.push_back({*defined.value(), std::nullopt});
    here().sources.push_back(source);
    return defined;
  }

  Arg recompute_scalar(ValueId id, const Node& node) {
    const auto size = sizes_.find(unsplit_.value(id).expression);
    if (size == sizes_.end() || unsplit_.value(id).type != ValueType::Int) {
      copy_node(node);
      return names_[index_of(id)];
    }
    const Arg tensor = resolve(size->second.first);
    Arg defined = define(id);
    graph().nodes.push_back({.op = find_operator("aten::sym_size.int"),
                             .args = {tensor, {IValue(size->second.second)}},
                             .results = {{.ids = {*defined.value()}}},
                             .module = node.module});
    return defined;
  }

  void copy_node(const Node& node) {
    Node copy = node;
    for (Arg& arg : copy.args) arg = resolved(arg);
    for (Result& result : copy.results) {
      for (ValueId& id : result.ids) {
        if (id != kUnusedValue) id = *define(id).value();
      }
    }
    graph().nodes.push_back(std::move(copy));
  }

  Arg resolved(const Arg& arg) {
    if (const ValueId* id = arg.value()) return resolve(*id);
    const std::vector<Arg>* items = arg.list();
    if (!items) return arg;
    std::vector<Arg> list;
    for (const Arg& item : *items) list.push_back(resolved(item));
    return {std::move(list)};
  }

  const Graph& unsplit_;
  const Origins& origins_;
  const std::vector<bool>& transmitted_;  //!< by slot of the unsplit graph
  std::vector<StageGraph>& stages_;
  const std::vector<int>& stage_of_node_;
  int stage_;
  std::vector<Arg> names_;  //!< values of the unsplit graph as arguments in this stage
  std::vector<bool> known_;
  std::map<std::int32_t, int> outputs_;
  std::map<std::string, std::pair<ValueId, std::int64_t>> sizes_;
  std::vector<StageBuilder>* peers_ = nullptr;
};

value::Structure flat_tuple(std::size_t leaves) {
  return {.kind = value::Structure::Kind::Tuple, .children = std::vector<value::Structure>(leaves)};
}

std::vector<int> stages_of_nodes(const Graph& graph, const SplitPositions& positions) {
  std::vector<int> stage(graph.nodes.size(), 0);
  std::size_t before = 0;
  for (const std::size_t position : positions) {
    if (position <= before || position >= graph.nodes.size()) {
      throw UsageError(str_cat("split positions must be ascending and within the graph's ",
                               graph.nodes.size(), " nodes; ", position, " is not"));
    }
    before = position;
    for (std::size_t i = position; i < graph.nodes.size(); ++i) ++stage[i];
  }
  return stage;
}

std::vector<bool> transmitted_slots(const Graph& graph, const MultiUseParameterSpec& multi_use) {
  std::set<std::string> unknown;
  for (const auto& [name, config] : multi_use.by_name) unknown.insert(name);
  std::vector<bool> transmitted;
  std::vector<std::string> names;
  for (const Slot& slot : graph.slots) {
    MultiUseParameterConfig config = multi_use.default_config;
    for (const std::string& name : slot.names) {
      const auto found = multi_use.by_name.find(name);
      if (found == multi_use.by_name.end() || slot.kind != Slot::Kind::Parameter) continue;
      config = found->second;
      unknown.erase(name);
    }
    if (slot.kind == Slot::Kind::Parameter) names.insert(names.end(), slot.names.begin(), slot.names.end());
    transmitted.push_back(slot.kind == Slot::Kind::Parameter && config == MultiUseParameterConfig::Transmit);
  }
  if (unknown.empty()) return transmitted;
  throw UsageError("the model has no parameter " + quote(*unknown.begin(), 200), {},
                   did_you_mean(*unknown.begin(), names));
}

std::vector<SharedSlot> shared_slots(const Graph& graph, const std::vector<StageGraph>& stages) {
  std::vector<SharedSlot> shared;
  for (std::size_t slot = 0; slot < graph.slots.size(); ++slot) {
    SharedSlot found{.names = graph.slots[slot].names,
                     .is_parameter = graph.slots[slot].kind == Slot::Kind::Parameter};
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const auto& held = stages[s].slots;
      if (std::find(held.begin(), held.end(), static_cast<int>(slot)) != held.end()) {
        found.stages.emplace_back(static_cast<std::int64_t>(s));
      }
    }
    if (found.stages.size() > 1) shared.push_back(std::move(found));
  }
  return shared;
}

}  // namespace

SplitGraph split_graph(const Graph& graph, const SplitPositions& positions,
                       const MultiUseParameterSpec& multi_use) {
  const std::vector<std::string> obstacles = split_obstacles(graph);
  const std::vector<int> stage_of_node = stages_of_nodes(graph, positions);
  for (const std::size_t position : positions) {
    if (obstacles[position].empty()) continue;
    throw UsageError(
        "the model cannot be split before " + graph.nodes[position].name() +
            (graph.nodes[position].module.empty() ? "" : " of module " + graph.nodes[position].module) +
            ": " + obstacles[position],
        {}, "move the split point, or make the model write to a clone() instead");
  }
  const Origins origins(graph);
  const std::vector<bool> transmitted = transmitted_slots(graph, multi_use);
  const std::size_t count = positions.size() + 1;
  SplitGraph split;
  split.stages.resize(count);
  std::vector<StageBuilder> builders;
  for (std::size_t s = 0; s < count; ++s)
    builders.emplace_back(graph, origins, transmitted, split.stages, stage_of_node, static_cast<int>(s));
  for (std::size_t s = 0; s < count; ++s) {
    builders[s].set_peers(&builders);
    const std::size_t begin = s == 0 ? 0 : positions[s - 1],
                      end = s < positions.size() ? positions[s] : graph.nodes.size();
    builders[s].build(begin, end, s + 1 == count);
  }
  for (std::size_t s = 0; s < count; ++s) {
    Graph& stage = split.stages[s].graph;
    if (stage.nodes.empty() && count > 1) {
      throw UsageError(str_cat("stage ", s, " would have no nodes to run"), {},
                       "move or remove one of the split points around it");
    }
    if (s + 1 < count) stage.output_structure = flat_tuple(stage.outputs.size());
    stage.input_structure = {
        .kind = value::Structure::Kind::Tuple,
        .children = {flat_tuple(stage.inputs.size()), {.kind = value::Structure::Kind::Dict}}};
    stage = compact(stage);
    check_graph(stage);
  }
  split.shared = shared_slots(graph, split.stages);
  return split;
}

std::string to_string(const SplitGraph& split) {
  const auto& stages = split.stages;
  std::string text;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (std::size_t i = 0; i < stages[s].sources.size(); ++i) {
      const Graph& graph = stages[s].graph;
      const Value& value = graph.value(graph.inputs[i].value);
      text += str_cat("stage ", s, "  %", value.name, (value.meta ? " " + to_string(*value.meta) : ""),
                      "  from ");
      if (const auto* user = std::get_if<FromUser>(&stages[s].sources[i])) {
        text += str_cat("the user, input ", user->input, "\n");
      } else {
        const auto& from = std::get<FromStage>(stages[s].sources[i]);
        text += str_cat("stage ", from.stage.value, ", output ", from.output,
                        (from.stage.index() + 1 < s ? " (skips stages)" : ""), "\n");
      }
    }
    for (const Slot& slot : stages[s].graph.slots) {
      if (slot.kind != Slot::Kind::Constant) continue;
      const Value& value = stages[s].graph.value(slot.value);
      text += str_cat("stage ", s, "  %", value.name, (value.meta ? " " + to_string(*value.meta) : ""),
                      "  a constant of the model\n");
    }
  }
  for (const SharedSlot& slot : split.shared) {
    std::vector<int> stage_numbers;
    for (const StageId stage : slot.stages) stage_numbers.push_back(stage.value);
    text += std::string(slot.is_parameter ? "parameter " : "tensor ") + join(slot.names, " = ") +
            "  in stages " + join(stage_numbers, ", ") + "\n";
  }
  return text;
}

}  // namespace penstock::graph
