// Rewrites a graph so that selected linear layers and embeddings have adapters. Pipelines, tensor
// parallelism, checkpoints and the interpreter then treat these like the other parameters and operators of
// the model.
#include "train/lora/graph_adapters.h"

#include "base/text.h"
#include "graph/ir/schema.h"
#include "graph/passes/passes.h"
#include "parallel/graph/weights.h"
#include "parallel/tensor/module_paths.h"
#include "train/lora/initial_values.h"
#include "train/lora/layer_patterns.h"

#include <penstock/base/error.h>

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace penstock::train {
namespace {

using graph::Arg;
using graph::Graph;
using graph::Node;
using graph::ValueId;
using parallel::WeightUse;

// The parameters of an adapter in the graph.
struct AdapterValues {
  ValueId a, b;
};

[[noreturn]] void refuse_layer(const std::string& weight, const std::string& reason) {
  throw UsageError("LoRA cannot adapt " + quote(weight, 200) + ": " + reason, {},
                   "leave its module out of the patterns");
}

// Whether a node multiplies its product by a number, by which a merged weight would be multiplied, too.
bool scales_product(const Node& node) {
  if (node.name() != "aten::addmm" || node.args.size() < 5) return false;
  const c10::IValue* const alpha = node.args[4].constant();
  return alpha != nullptr && alpha->isScalar() && alpha->toScalar().toDouble() != 1;
}

void check_layer(const Graph& graph, const graph::Slot& slot, bool is_layer, bool is_table,
                 const std::set<std::string>& modules) {
  const std::string& name = slot.names[0];
  if (is_layer && is_table)
    refuse_layer(name, "it is the weight of a linear layer and the table of an embedding");
  if (slot.names.size() > 1) refuse_layer(name, "several modules share it (" + join(slot.names, ", ") + ")");
  if (modules.contains(parallel::parent_path(name))) refuse_layer(name, "its module has several weights");
  if (!at::isFloatingType(graph.value(slot.value).meta->dtype))
    refuse_layer(name, "it does not consist of floating-point numbers");
}

void replace_reads(Arg& arg, const std::map<ValueId, ValueId>& now) {
  if (auto* id = std::get_if<ValueId>(&arg.is)) {
    if (const auto found = now.find(*id); found != now.end()) *id = found->second;
  } else if (auto* items = std::get_if<std::vector<Arg>>(&arg.is)) {
    for (Arg& item : *items) replace_reads(item, now);
  }
}

class Rewriting {
 public:
  Rewriting(const Graph& graph, const LoraOptions& options)
      : graph_(graph), uses_(parallel::weight_uses(graph)), result_{graph, {options}} {
    for (graph::Slot& slot : result_.graph.slots) slot.requires_grad = false;
  }

  AdaptedGraph run() && {
    add_parameters();
    Graph& made = result_.graph;
    std::vector<Node> nodes = std::exchange(made.nodes, {});
    auto use = uses_.begin();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (Arg& arg : nodes[i].args) replace_reads(arg, now_);
      made.nodes.push_back(nodes[i]);
      while (use != uses_.end() && use->node < i) ++use;
      if (use == uses_.end() || use->node != i) continue;
      if (const auto found = adapters_.find(use->slot); found != adapters_.end())
        add_operators(nodes[i], *use, found->second);
    }
    for (Arg& output : made.outputs) replace_reads(output, now_);
    for (graph::Mutation& mutation : made.mutations)
      if (const auto found = now_.find(mutation.from); found != now_.end()) mutation.from = found->second;
    assign_storage(made);
    check_graph(made);
    return std::move(result_);
  }

 private:
  void add_parameters() {
    std::map<std::size_t, const WeightUse*> layers, tables, all;  // by slot, each with its first use
    for (const WeightUse& use : uses_) {
      (use.kind == WeightUse::Kind::Table ? tables : layers).emplace(use.slot, &use);
      all.emplace(use.slot, &use);
    }
    const LoraOptions& options = result_.lora.options;
    check_patterns(options, modules_of(layers), modules_of(tables));
    std::set<std::string> adapted;
    for (const auto& [index, use] : all) {
      const graph::Slot& slot = graph_.slots[index];
      const bool is_layer = layers.contains(index), is_table = tables.contains(index);
      const auto is_selected = [&](const std::string& name) {
        const std::string module = parallel::parent_path(name);
        return (is_layer && selects_layer(options, module)) ||
               (is_table && selects_embedding(options, module));
      };
      if (std::none_of(slot.names.begin(), slot.names.end(), is_selected)) continue;
      check_layer(graph_, slot, is_layer, is_table, adapted);
      if (scales_product(graph_.nodes[use->node])) refuse_layer(slot.names[0], "its product is scaled");
      adapted.insert(parallel::parent_path(slot.names[0]));
      add_adapter(index, *use);
    }
  }

  // The modules of the weights that are used like this.
  std::vector<std::string> modules_of(const std::map<std::size_t, const WeightUse*>& weights) const {
    std::vector<std::string> modules;
    for (const auto& [slot, use] : weights)
      for (const std::string& name : graph_.slots[slot].names) modules.push_back(parallel::parent_path(name));
    return modules;
  }

  void add_adapter(std::size_t index, const WeightUse& use) {
    const std::string& weight = graph_.slots[index].names[0];
    const AdaptedLayer layer{parallel::parent_path(weight), weight, use.out_dim == 1,
                             use.kind == WeightUse::Kind::Table};
    const graph::ValueMeta& meta = *graph_.value(graph_.slots[index].value).meta;
    const graph::Dim rank{result_.lora.options.rank, {}};
    const auto size = [&](std::int64_t dim) { return meta.sizes[static_cast<std::size_t>(dim)]; };
    const std::string name = graph_.value(graph_.slots[index].value).name;
    adapters_[index] = {add_slot(name + "_lora_a", layer.a(), {meta.dtype, {rank, size(use.in_dim)}}),
                        add_slot(name + "_lora_b", layer.b(), {meta.dtype, {size(use.out_dim), rank}})};
    result_.lora.layers.push_back(layer);
  }

  ValueId add_slot(std::string value, const std::string& name, const graph::ValueMeta& meta) {
    for (const graph::Slot& slot : result_.graph.slots)
      if (std::find(slot.names.begin(), slot.names.end(), name) != slot.names.end())
        throw UsageError("LoRA: the model has a parameter " + quote(name, 200) + " already", {},
                         "train without LoRA, or export the model without adapters");
    result_.adapters.emplace(name, meta);
    const ValueId id = result_.graph.add_value({.name = std::move(value), .meta = meta});
    result_.graph.slots.push_back({graph::Slot::Kind::Parameter, id, {name}, true});
    return id;
  }

  // The output y of a layer becomes y + scale * B(A(x)), with the modes of its operator.
  void add_operators(const Node& node, const WeightUse& use, const AdapterValues& adapter) {
    if (use.output == graph::kUnusedValue) return;
    const bool is_table = use.kind == WeightUse::Kind::Table;
    const std::string name = graph_.value(use.output).name;
    const std::optional<graph::ValueMeta> output = graph_.value(use.output).meta;
    const ValueId down = is_table ? add_lookup(node, use, adapter) : add_product(node, use, adapter);
    const ValueId up = add_node(
        node, "aten::linear",
        {{down}, {as_type_of(node, adapter.b, is_table ? use.output : now(use.input))}, {c10::IValue()}},
        name + "_lora_up", output);
    const ValueId scaled =
        add_node(node, "aten::mul.Tensor", {{up}, {graph::wrapped_number(result_.lora.options.scale())}},
                 name + "_lora", output);
    now_[use.output] = add_node(node, "aten::add.Tensor", {{use.output}, {scaled}, {c10::IValue(1)}},
                                name + "_adapted", output);
  }

  // A(dropout(x)) of a linear layer.
  ValueId add_product(const Node& node, const WeightUse& use, const AdapterValues& adapter) {
    const std::string name = graph_.value(use.output).name;
    ValueId x = now(use.input);
    const std::optional<graph::ValueMeta> input = result_.graph.value(x).meta;
    const LoraOptions& options = result_.lora.options;
    if (options.dropout > 0)
      x = add_node(node, "aten::dropout", {{x}, {c10::IValue(options.dropout)}, {c10::IValue(true)}},
                   name + "_lora_dropout", input);
    return add_node(node, "aten::linear", {{x}, {as_type_of(node, adapter.a, x)}, {c10::IValue()}},
                    name + "_lora_down", of_rank(input));
  }

  // The columns of A that belong to the indices of an embedding.
  ValueId add_lookup(const Node& node, const WeightUse& use, const AdapterValues& adapter) {
    const std::string name = graph_.value(use.output).name;
    const ValueId a = as_type_of(node, adapter.a, use.output);
    graph::ValueMeta turned = *result_.graph.value(a).meta;
    std::swap(turned.sizes.at(0), turned.sizes.at(1));
    std::vector<Arg> args = node.args;  // with the padding index
    args.at(0) = {add_node(node, "aten::t", {{a}}, name + "_lora_table", turned)};
    constexpr std::size_t sparse = 4;  // A is trained with dense gradients
    if (args.size() > sparse) args[sparse] = {c10::IValue(false)};
    return add_node(node, "aten::embedding", std::move(args), name + "_lora_down",
                    of_rank(graph_.value(use.output).meta));
  }

  // The metadata of a value whose last dim has the size of the rank instead.
  std::optional<graph::ValueMeta> of_rank(std::optional<graph::ValueMeta> meta) const {
    if (meta && !meta->sizes.empty()) meta->sizes.back() = {result_.lora.options.rank, {}};
    return meta;
  }

  // A value, or with the adapter of the layer whose output it is.
  ValueId now(ValueId value) const {
    const auto adapted = now_.find(value);
    return adapted == now_.end() ? value : adapted->second;
  }

  // Weights that are converted before their use have another dtype than the input of a linear layer, or the
  // output of an embedding.
  ValueId as_type_of(const Node& node, ValueId weight, ValueId x) {
    const auto& meta = result_.graph.value(x).meta;
    graph::ValueMeta converted = *result_.graph.value(weight).meta;
    if (!meta || meta->dtype == converted.dtype || !node.mode.autocast.empty()) return weight;
    converted.dtype = meta->dtype;
    const std::string name = result_.graph.value(weight).name;
    return add_node(node, "aten::type_as", {{weight}, {x}}, name + "_as_input", converted);
  }

  ValueId add_node(const Node& layer, const char* op, std::vector<Arg> args, std::string name,
                   std::optional<graph::ValueMeta> meta) {
    Node node{
        .op = graph::find_operator(op), .module = layer.module, .calls = layer.calls, .mode = layer.mode};
    node.args = std::move(args);
    const ValueId id = result_.graph.add_value({.name = std::move(name), .meta = std::move(meta)});
    node.results = {graph::Result{{id}, false}};
    result_.graph.nodes.push_back(std::move(node));
    return id;
  }

  const Graph& graph_;
  std::vector<WeightUse> uses_;
  AdaptedGraph result_;
  std::map<std::size_t, AdapterValues> adapters_;  // by the slot of the weight
  std::map<ValueId, ValueId> now_;                 // outputs of layers, and of their adapters
};

}  // namespace

AdaptedGraph add_adapters(const Graph& graph, const LoraOptions& options) {
  check(options);
  return Rewriting(graph, options).run();
}

at::Tensor AdaptedGraph::initial_value(const std::string& name) const {
  const graph::ValueMeta& meta = adapters.at(name);
  const auto options = at::TensorOptions(meta.dtype).device(at::kCPU);
  at::Tensor value = at::zeros({meta.sizes[0].size, meta.sizes[1].size}, options);
  for (const AdaptedLayer& layer : lora.layers)
    if (drawn_factor(layer) == name) initialize_adapter(value, layer, lora.options.seed);
  return value.set_requires_grad(true);
}

std::vector<std::string> updated_buffers(const Graph& graph) {
  std::set<ValueId> written;
  for (const graph::Mutation& mutation : graph.mutations) written.insert(mutation.target);
  for (const Node& node : graph.nodes)
    if (node.kind == Node::Kind::Op)
      for (const ValueId id : written_values(node)) written.insert(id);
  std::vector<std::string> names;
  for (const graph::Slot& slot : graph.slots)
    if (slot.kind == graph::Slot::Kind::Buffer && written.contains(slot.value))
      names.push_back(slot.names[0]);
  return names;
}

parallel::ParallelPlan adapted_plan(parallel::ParallelPlan plan, const Lora& lora) {
  const parallel::ParallelPlan given = plan;
  for (const AdaptedLayer& layer : lora.layers)
    for (const auto& [pattern, style] : given) {
      if (!parallel::path_fits(pattern, layer.module)) continue;
      if (std::holds_alternative<parallel::ColwiseParallel>(style))
        plan.emplace_back(layer.b_module(), style);
      if (std::holds_alternative<parallel::RowwiseParallel>(style))
        plan.emplace_back(layer.a_module(), style);
    }
  return plan;
}

}  // namespace penstock::train
