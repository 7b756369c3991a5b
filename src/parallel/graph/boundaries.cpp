// Boundaries are nodes of a custom operator that carries the function to call as a constant. The interpreter
// runs it like any other operator.
#include "parallel/graph/boundaries.h"

#include "base/text.h"
#include "graph/passes/passes.h"
#include "parallel/graph/weights.h"

#include <penstock/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <set>

namespace penstock::parallel {
namespace {

using Function = std::function<at::Tensor(const at::Tensor&)>;

struct Held : torch::CustomClassHolder {
  explicit Held(Function f) : function(std::move(f)) {}
  Function function;
};

void call_held(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const auto held = c10::static_intrusive_pointer_cast<Held>(torch::jit::pop(*stack).toCapsule());
  const at::Tensor tensor = torch::jit::pop(*stack).toTensor();
  torch::jit::push(*stack, held->function(tensor));
}

void exchange_reads(graph::Arg& arg, graph::ValueId from, graph::ValueId to) {
  if (auto* id = std::get_if<graph::ValueId>(&arg.is)) {
    if (*id == from) *id = to;
  } else if (auto* items = std::get_if<std::vector<graph::Arg>>(&arg.is)) {
    for (graph::Arg& item : *items) exchange_reads(item, from, to);
  }
}

graph::Node call_node(graph::Graph& graph, graph::ValueId from, const char* suffix, const std::string& module,
                      const Function& function) {
  graph::Value value = graph.value(from);
  value.name += suffix;
  graph::Node node{.op = graph::find_operator("penstock::at_boundary"), .module = module};
  node.args = {graph::Arg{from}, graph::Arg{c10::IValue::make_capsule(c10::make_intrusive<Held>(function))}};
  node.results = {graph::Result{{graph.add_value(std::move(value))}, false}};
  return node;
}

//! One call of the module: nodes [begin, end).
class Call {
 public:
  Call(graph::Graph& graph, const std::string& module, std::size_t begin, std::size_t end)
      : graph_(graph), module_(module), begin_(begin), end_(end) {
    for (std::size_t i = begin_; i < end_; ++i)
      for_each_result(graph_.nodes[i], [&](graph::ValueId id) { made_.insert(id); });
  }

  void leave(const Boundary& boundary) {
    std::vector<graph::Node> nodes;
    const std::vector<graph::ValueId> leaving = read_later();
    if (boundary.check_leaving) boundary.check_leaving(leaving.size());
    for (std::size_t k = 0; k < leaving.size(); ++k) {
      const graph::ValueId id = leaving[k];
      const Function function = [leave = boundary.leave, k](const at::Tensor& t) { return leave(t, k); };
      nodes.push_back(call_node(graph_, id, "_left", module_, function));
      const graph::ValueId now = nodes.back().results[0].ids[0];
      for (std::size_t i = end_; i < graph_.nodes.size(); ++i)
        for (graph::Arg& arg : graph_.nodes[i].args) exchange_reads(arg, id, now);
      for (graph::Arg& output : graph_.outputs) exchange_reads(output, id, now);
    }
    insert(end_, std::move(nodes));
  }

  void enter(const Boundary& boundary) {
    std::vector<graph::Node> nodes;
    const std::vector<graph::ValueId> entering = read_from_outside();
    if (boundary.check_entering) boundary.check_entering(entering.size());
    for (std::size_t k = 0; k < std::min(entering.size(), boundary.entering.value_or(entering.size())); ++k) {
      const graph::ValueId id = entering[k];
      refuse_writes(id);
      const Function function = [enter = boundary.enter, k](const at::Tensor& t) { return enter(t, k); };
      nodes.push_back(call_node(graph_, id, "_entered", module_, function));
      const graph::ValueId now = nodes.back().results[0].ids[0];
      for (std::size_t i = begin_; i < end_; ++i)
        for (graph::Arg& arg : graph_.nodes[i].args) exchange_reads(arg, id, now);
    }
    insert(begin_, std::move(nodes));
  }

 private:
  bool is_tensor(graph::ValueId id) const { return graph_.value(id).type == graph::ValueType::Tensor; }

  std::vector<graph::ValueId> read_from_outside() const {
    std::vector<graph::ValueId> found;
    for (std::size_t i = begin_; i < end_; ++i) {
      for_each_read(graph_.nodes[i], [&](graph::ValueId id) {
        if (!is_tensor(id) || made_.contains(id) || graph_.find_slot(id)) return;
        if (std::find(found.begin(), found.end(), id) == found.end()) found.push_back(id);
      });
    }
    return found;
  }

  std::vector<graph::ValueId> read_later() const {
    std::vector<graph::ValueId> found;
    const auto note = [&](graph::ValueId id) {
      if (!is_tensor(id) || !made_.contains(id)) return;
      if (std::find(found.begin(), found.end(), id) == found.end()) found.push_back(id);
    };
    for (std::size_t i = end_; i < graph_.nodes.size(); ++i) for_each_read(graph_.nodes[i], note);
    for (const graph::Arg& output : graph_.outputs) for_each_value(output, note);
    return found;
  }

  void refuse_writes(graph::ValueId id) const {
    const std::optional<std::int32_t> storage = graph_.value(id).storage;
    for (std::size_t i = begin_; i < end_; ++i) {
      for (const graph::ValueId written : written_values(graph_.nodes[i])) {
        if (written != id && (!storage || graph_.value(written).storage != storage)) continue;
        throw UsageError("the module modifies an input that must be redistributed",
                         {.op = graph_.nodes[i].name() + " of module " + quote(module_)},
                         "apply the style to a module that only reads its input");
      }
    }
  }

  void insert(std::size_t at, std::vector<graph::Node> nodes) {
    graph_.nodes.insert(graph_.nodes.begin() + static_cast<std::ptrdiff_t>(at),
                        std::make_move_iterator(nodes.begin()), std::make_move_iterator(nodes.end()));
  }

  graph::Graph& graph_;
  const std::string& module_;
  std::size_t begin_, end_;
  std::set<graph::ValueId> made_;
};

}  // namespace

graph::Graph with_boundary(graph::Graph graph, const std::string& module, const Boundary& boundary) {
  bool found = false;
  // From the last call to the first, so that the node indices of earlier calls stay valid.
  for (std::size_t end = graph.nodes.size(); end > 0;) {
    if (!is_inside(graph.nodes[end - 1].module, module)) {
      --end;
      continue;
    }
    std::size_t begin = end - 1;
    while (begin > 0 && is_inside(graph.nodes[begin - 1].module, module)) --begin;
    Call call(graph, module, begin, end);
    if (boundary.leave) call.leave(boundary);
    if (boundary.enter) call.enter(boundary);
    found = true;
    end = begin;
  }
  if (!found) {
    throw UsageError(
        "module " + quote(module) + " has no operators in this graph", {},
        "when capturing a model, mark the operators of modules with penstock::graph::ModuleScope");
  }
  return graph;
}

}  // namespace penstock::parallel

TORCH_LIBRARY_FRAGMENT(penstock, library) {
  library.def("at_boundary(Tensor tensor, Capsule how) -> Tensor");
}

TORCH_LIBRARY_IMPL(penstock, CompositeImplicitAutograd, library) {
  library.impl("at_boundary", torch::CppFunction::makeFromBoxedFunction<&penstock::parallel::call_held>());
}
