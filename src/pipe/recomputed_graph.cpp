// Divides the graph of a stage like a model into stages, but runs all parts one after the other.
#include "pipe/recomputed_graph.h"

#include "base/text.h"
#include "graph/ir/module_path.h"
#include "graph/passes/graph_costs.h"
#include "graph/run/interpreter.h"
#include "graph/split/split_points.h"

#include <penstock/base/error.h>
#include <penstock/graph/split.h>
#include <penstock/runtime/recompute.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <set>
#include <utility>

namespace penstock::pipe {
namespace {

using c10::IValue;

// The path and call number of a selected module; the path is empty for other nodes.
using SelectedCall = std::pair<std::string, int>;

// The outermost selected module that ran the node.
SelectedCall selected_call(const graph::Node& node, const std::set<std::string>& modules) {
  for (std::size_t end = 0; !node.module.empty() && end != std::string::npos;) {
    end = node.module.find('.', end + 1);
    const std::string path = node.module.substr(0, end);
    if (modules.contains(path)) return {path, call_of(node, path)};
  }
  return {};
}

void check_boundary(const graph::Graph& graph, const GraphPiece& piece, std::size_t position) {
  if (!piece.recomputed || position == 0 || position >= graph.nodes.size()) return;
  const std::optional<std::string> why = why_not_splittable(graph, position);
  if (!why) return;
  throw UsageError("the activations of module " + quote(piece.module, 200) + " cannot be recomputed: " + *why,
                   {}, "recompute a module around it, or whole stages");
}

// Slots that the graph may write: buffers that it updates, and those of operators that update them silently.
std::vector<bool> written_slots(const graph::Graph& graph) {
  std::vector<bool> written(graph.values.size(), false);
  for (const graph::Mutation& mutation : graph.mutations) written[mutation.target.index()] = true;
  for (const graph::Node& node : graph.nodes) {
    const std::string name = node.name();
    const bool is_mutable = node.op != nullptr && node.op->schema().is_mutable();
    if (is_mutable || name.find("batch_norm") != std::string::npos ||
        name.find("instance_norm") != std::string::npos)
      for_each_read(node, [&](graph::ValueId id) { written[id.index()] = true; });
  }
  std::vector<bool> slots;
  for (const graph::Slot& slot : graph.slots)
    slots.push_back(slot.kind == graph::Slot::Kind::Buffer && written[slot.value.index()]);
  return slots;
}

}  // namespace

std::vector<GraphPiece> recomputed_pieces(const graph::Graph& graph,
                                          const std::vector<std::string>& modules) {
  const std::set<std::string> selected(modules.begin(), modules.end());
  const std::vector<bool> constant = recomputed_values(graph);
  std::vector<GraphPiece> pieces;
  SelectedCall last;
  bool works = false;  // the last piece has work
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const graph::Node& node = graph.nodes[i];
    const bool is_work =
        node.kind == graph::Node::Kind::Op && !is_size_query(node) && !is_recomputed(node, constant);
    if (!is_work) continue;  // belongs to the piece of its neighbor
    SelectedCall call = selected_call(node, selected);
    if (!works || call != last) {
      const std::size_t begin = pieces.empty() ? 0 : i;
      if (!pieces.empty()) pieces.back().end = begin;
      pieces.push_back({begin, graph.nodes.size(), !call.first.empty(), call.first});
    }
    last = std::move(call);
    works = true;
  }
  return pieces;
}

void check_recomputed_pieces(const graph::Graph& graph, const std::vector<std::string>& modules) {
  if (modules.empty()) return;
  for (const GraphPiece& piece : recomputed_pieces(graph, modules)) {
    check_boundary(graph, piece, piece.begin);
    check_boundary(graph, piece, piece.end);
  }
}

RecomputedCosts recomputed_costs(const graph::Graph& graph, const std::vector<std::string>& modules) {
  RecomputedCosts costs;
  for (const GraphPiece& piece : recomputed_pieces(graph, modules)) {
    if (!piece.recomputed) continue;
    std::vector<bool> kept(graph.values.size(), false);  // read outside of the piece
    const auto keep = [&](graph::ValueId id) { kept[id.index()] = true; };
    for (std::size_t i = 0; i < graph.nodes.size(); ++i)
      if (i < piece.begin || i >= piece.end) for_each_read(graph.nodes[i], keep);
    for (const graph::Arg& output : graph.outputs) for_each_value(output, keep);
    for (std::size_t i = piece.begin; i < piece.end; ++i) {
      costs.flops += node_flops(graph, graph.nodes[i]);
      bool is_output = false;
      for_each_result(graph.nodes[i], [&](graph::ValueId id) { is_output = is_output || kept[id.index()]; });
      if (!is_output) costs.bytes += node_result_bytes(graph, graph.nodes[i]);
    }
  }
  return costs;
}

struct RecomputedGraph::Impl {
  //! What both runs of a piece need; the backward pass may outlive the stage.
  struct Piece {
    graph::StageGraph part;
    bool recomputed = false;
    std::vector<bool> written;                      //!< by slot
    std::shared_ptr<const graph::Interpreter> run;  //!< compiled for the device of the module

    std::vector<at::Tensor> tensors(const graph::GraphModule& owner) const {
      std::vector<at::Tensor> all;
      for (const int slot : part.slots) all.push_back(owner.tensors()[static_cast<std::size_t>(slot)]);
      return all;
    }
  };

  std::shared_ptr<graph::GraphModule> module;
  std::vector<Piece> pieces;
  bool shares_parameters = false;
  std::optional<at::Device> device{};
  bool compiled = false;
  //! For each piece, the outputs (piece, index) that no later piece reads.
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> last_reads{};

  void compile() {
    if (compiled && device == module->device()) return;
    device = module->device();
    for (Piece& piece : pieces)
      piece.run = std::make_shared<const graph::Interpreter>(piece.part.graph, device);
    compiled = true;
  }

  void find_last_reads() {
    last_reads.resize(pieces.size());
    std::set<std::pair<std::size_t, std::size_t>> read;
    for (std::size_t p = pieces.size(); p-- > 0;) {
      for (const graph::InputSource& source : pieces[p].part.sources) {
        const auto* from = std::get_if<graph::FromStage>(&source);
        if (!from) continue;
        const std::pair output{from->stage.index(), static_cast<std::size_t>(from->output)};
        if (read.insert(output).second) last_reads[p].push_back(output);
      }
    }
  }
};

RecomputedGraph::RecomputedGraph(std::shared_ptr<graph::GraphModule> module,
                                 const std::vector<std::string>& modules)
    : impl_(std::make_unique<Impl>(Impl{.module = std::move(module), .pieces = {}})) {
  const graph::Graph& graph = impl_->module->graph();
  const std::vector<GraphPiece> pieces = recomputed_pieces(graph, modules);
  graph::SplitPositions positions;
  for (const GraphPiece& piece : pieces)
    if (piece.begin > 0) positions.push_back(piece.begin);
  if (std::none_of(pieces.begin(), pieces.end(), [](const GraphPiece& piece) { return piece.recomputed; }))
    return;
  check_recomputed_pieces(graph, modules);
  graph::SplitGraph split = split_graph(graph, positions);
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    std::vector<bool> written = written_slots(split.stages[p].graph);
    impl_->pieces.push_back({std::move(split.stages[p]), pieces[p].recomputed, std::move(written), nullptr});
  }
  for (const graph::SharedSlot& slot : split.shared)
    impl_->shares_parameters |=
        slot.is_parameter && std::any_of(slot.stages.begin(), slot.stages.end(),
                                         [&](StageId piece) { return pieces[piece.index()].recomputed; });
  impl_->find_last_reads();
}

RecomputedGraph::~RecomputedGraph() = default;

bool RecomputedGraph::any() const {
  return !impl_->pieces.empty();
}

bool RecomputedGraph::shares_parameters() const {
  return impl_->shares_parameters;
}

namespace {

bool any_requires_grad(const std::vector<IValue>& inputs, const std::vector<at::Tensor>& tensors) {
  const auto requires_grad = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  return std::any_of(tensors.begin(), tensors.end(), requires_grad) ||
         std::any_of(inputs.begin(), inputs.end(), [&](const IValue& input) {
           return input.isTensor() && requires_grad(input.toTensor());
         });
}

// The first run updates the buffers of the module; the second one, copies of their values before the first.
template <class Piece>
std::vector<IValue> run_recomputed(const Piece& piece, const graph::GraphModule& module,
                                   const std::vector<IValue>& inputs) {
  const std::vector<at::Tensor> tensors = piece.tensors(module);
  if (!any_requires_grad(inputs, tensors)) return piece.run->run(inputs, tensors);
  std::vector<at::Tensor> again = tensors;
  for (std::size_t i = 0; i < again.size(); ++i)
    if (piece.written[i]) again[i] = again[i].clone();
  const auto runs = std::make_shared<int>(0);
  const auto function = [run = piece.run, tensors, again, runs](const std::vector<IValue>& values) {
    return IValue(c10::ivalue::Tuple::create(run->run(values, (*runs)++ == 0 ? tensors : again)));
  };
  return runtime::recompute_tree(function, inputs).toTupleRef().elements().vec();
}

}  // namespace

std::vector<IValue> RecomputedGraph::run(const std::vector<IValue>& leaves) {
  impl_->compile();
  std::vector<std::vector<IValue>> outputs;
  for (std::size_t p = 0; p < impl_->pieces.size(); ++p) {
    const Impl::Piece& piece = impl_->pieces[p];
    std::vector<IValue> inputs;
    for (const graph::InputSource& source : piece.part.sources) {
      const auto* from = std::get_if<graph::FromStage>(&source);
      inputs.push_back(from ? outputs[from->stage.index()][static_cast<std::size_t>(from->output)]
                            : leaves.at(static_cast<std::size_t>(std::get<graph::FromUser>(source).input)));
    }
    for (const auto& [from, index] : impl_->last_reads[p]) outputs[from][index] = IValue();
    outputs.push_back(piece.recomputed ? run_recomputed(piece, *impl_->module, inputs)
                                       : piece.run->run(std::move(inputs), piece.tensors(*impl_->module)));
  }
  return std::move(outputs.back());
}

}  // namespace penstock::pipe
