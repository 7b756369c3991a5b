// Runs a graph as a module, after checking its inputs.
#include "base/text.h"
#include "graph/passes/passes.h"
#include "graph/run/interpreter.h"
#include "graph/run/node_observer.h"
#include "value/kind_name.h"
#include "value/tensor_storage.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_module.h>
#include <penstock/value/tensor_meta.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_like.h>

#include <map>

namespace penstock::graph {
namespace {

using c10::IValue;
using Named = std::vector<value::NamedTensor>;

Named named(const Graph& graph, const std::vector<at::Tensor>& tensors, Slot::Kind kind) {
  Named found;
  for (std::size_t i = 0; i < graph.slots.size(); ++i) {
    if (graph.slots[i].kind == kind) found.push_back({graph.slots[i].names[0], tensors[i]});
  }
  return found;
}

// Meta tensors get uninitialized memory; the caller fills them.
at::Tensor copy_on(const at::Tensor& tensor, c10::Device device) {
  const at::Tensor copy =
      tensor.is_meta() ? at::empty_like(tensor, tensor.options().device(device)) : tensor.detach().to(device);
  return copy.set_requires_grad(tensor.requires_grad());
}

const SymbolRange* range_of(const Graph& graph, const std::string& symbol) {
  for (const SymbolRange& range : graph.symbols) {
    if (range.symbol == symbol) return &range;
  }
  return nullptr;
}

}  // namespace

struct GraphModule::Impl {
  Graph graph;
  std::vector<at::Tensor> tensors;
  std::optional<c10::Device> device;
  Interpreter train;
  std::optional<Interpreter> eval{};
  bool training = true;

  const Interpreter& interpreter() const { return training ? train : *eval; }
};

GraphModule::GraphModule(Graph graph, std::vector<at::Tensor> tensors, std::optional<c10::Device> device) {
  if (tensors.size() != graph.slots.size()) {
    throw UsageError(str_cat("the graph needs ", graph.slots.size(), " tensors, not ", tensors.size()));
  }
  Interpreter train(graph, device);
  impl_ = std::make_unique<Impl>(Impl{std::move(graph), std::move(tensors), device, std::move(train)});
  if (!device) return;
  for (at::Tensor& tensor : impl_->tensors) {
    if (tensor.device() != *device) tensor = copy_on(tensor, *device);
  }
}

GraphModule::GraphModule(GraphModule&&) noexcept = default;
GraphModule& GraphModule::operator=(GraphModule&&) noexcept = default;
GraphModule::~GraphModule() = default;

const Graph& GraphModule::graph() const {
  return impl_->graph;
}
const std::vector<at::Tensor>& GraphModule::tensors() const {
  return impl_->tensors;
}
const std::optional<c10::Device>& GraphModule::device() const {
  return impl_->device;
}
bool GraphModule::is_training() const {
  return impl_->training;
}

void GraphModule::to(c10::Device device) {
  std::vector<at::Tensor>& tensors = impl_->tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].device() == device) continue;
    const at::Tensor moved = copy_on(tensors[i], device);
    if (graph().slots[i].kind == Slot::Kind::Constant) {  // no other handles to a constant exist
      tensors[i] = moved;
    } else {
      value::TensorStorage::move_to(tensors[i], moved);
    }
  }
  if (impl_->device == device) return;
  impl_->device = device;
  impl_->train = Interpreter(graph(), device);
  if (impl_->eval) impl_->eval.emplace(eval_graph(graph()), device);
}

IValue GraphModule::forward(const value::Args& args, const value::Kwargs& kwargs) {
  std::vector<IValue> leaves = flatten_inputs(graph(), args, kwargs);
  check_inputs(graph(), leaves);
  return unflatten(run(std::move(leaves)), graph().output_structure);
}

std::function<void(const Node&)>& node_observer() {
  thread_local std::function<void(const Node&)> observer;
  return observer;
}

std::vector<IValue> GraphModule::run(std::vector<IValue> leaves) {
  if (const auto& observer = node_observer()) {
    const Graph ran = is_training() ? graph() : eval_graph(graph());
    return impl_->interpreter().run(std::move(leaves), tensors(),
                                    [&](std::size_t node) { observer(ran.nodes[node]); });
  }
  return impl_->interpreter().run(std::move(leaves), tensors());
}

Named GraphModule::named_parameters() const {
  return named(graph(), tensors(), Slot::Kind::Parameter);
}

Named GraphModule::named_buffers() const {
  return named(graph(), tensors(), Slot::Kind::Buffer);
}

void GraphModule::train(bool on) {
  if (!on && !impl_->eval) impl_->eval.emplace(eval_graph(graph()), device());
  impl_->training = on;
}

std::vector<IValue> flatten_inputs(const Graph& graph, const value::Args& args, const value::Kwargs& kwargs) {
  c10::impl::GenericDict named_args(c10::StringType::get(), c10::AnyType::get());
  // Kwargs may come in any order; flatten them in the order of the export.
  const value::Structure* order =
      graph.input_structure.children.size() == 2 ? &graph.input_structure.children[1] : nullptr;
  std::size_t taken = 0;
  for (std::size_t i = 0; order && i < order->keys.size(); ++i) {
    const auto* name = std::get_if<std::string>(&order->keys[i]);
    const auto it = name ? kwargs.find(*name) : kwargs.end();
    if (it == kwargs.end()) continue;
    named_args.insert(it->first, it->second);
    ++taken;
  }
  for (const auto& [name, value] : kwargs) {
    if (taken < kwargs.size() && !named_args.contains(name)) named_args.insert(name, value);
  }
  const IValue tree = c10::ivalue::Tuple::create({c10::ivalue::Tuple::create(args), named_args});
  value::FlatTree flat = value::flatten(tree);
  // Comparing strings ignores the element types of lists.
  if (flat.leaves.size() != graph.inputs.size() ||
      to_string(flat.structure) != to_string(graph.input_structure)) {
    throw UsageError("the arguments are " + to_string(flat.structure) + ", but the graph takes " +
                     to_string(graph.input_structure));
  }
  return std::move(flat.leaves);
}

namespace {

bool is_autocast_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
}

// A graph was recorded without autocast, which changes the dtypes between operators, and therefore those that
// one stage sends to the next.
bool accepts_dtype(const at::Tensor& tensor, at::ScalarType expected, FloatDtypes floats) {
  if (tensor.scalar_type() == expected) return true;
  return is_autocast_dtype(tensor.scalar_type()) && is_autocast_dtype(expected) &&
         (floats == FloatDtypes::Any || at::autocast::is_autocast_enabled(tensor.device().type()));
}

}  // namespace

void check_inputs(const Graph& graph, const std::vector<IValue>& leaves, const std::string& size_hint,
                  FloatDtypes floats) {
  std::vector<std::string> faults;
  std::map<std::string, std::pair<std::int64_t, std::string>> symbols;
  const std::vector<std::string> paths = graph.input_paths();
  bool sizes_differ = false, out_of_range = false;
  for (std::size_t i = 0; i < graph.inputs.size() && i < leaves.size(); ++i) {
    const GraphInput& input = graph.inputs[i];
    const Value& value = graph.value(input.value);
    const std::string here = paths[i] + " (" + value.name + ")";
    if (input.constant) {
      if (!value::leaves_equal(*input.constant, leaves[i]))
        faults.push_back(here + " differs from the constant in the graph");
      continue;
    }
    if (value.type != ValueType::Tensor) continue;
    if (!leaves[i].isTensor() || !leaves[i].toTensor().defined()) {
      faults.push_back(here + " is a " + value::kind_name(leaves[i]) + ", expected a tensor");
      continue;
    }
    if (!value.meta) continue;
    const at::Tensor& tensor = leaves[i].toTensor();
    if (!accepts_dtype(tensor, value.meta->dtype, floats)) {
      faults.push_back(here + " is " + value::dtype_name(tensor.scalar_type()) + ", expected " +
                       value::dtype_name(value.meta->dtype));
    }
    if (tensor.dim() != static_cast<std::int64_t>(value.meta->sizes.size())) {
      faults.push_back(str_cat(here, " has ", tensor.dim(), " dims, expected ", to_string(*value.meta)));
      continue;
    }
    for (std::size_t d = 0; d < value.meta->sizes.size(); ++d) {
      const Dim& dim = value.meta->sizes[d];
      const std::int64_t size = tensor.size(static_cast<std::int64_t>(d));
      const std::string location = str_cat("dim ", d, " of ", here, " is ", size);
      if (dim.expression.empty()) {
        if (size == dim.size) continue;
        faults.push_back(str_cat(location, ", expected ", dim.size));
        sizes_differ = true;
        continue;
      }
      const auto [it, fresh] = symbols.try_emplace(dim.expression, size, here);
      if (!fresh && it->second.first != size) {
        faults.push_back(
            str_cat(location, ", but ", dim.expression, " is ", it->second.first, " in ", it->second.second));
      }
      const SymbolRange* range = range_of(graph, dim.expression);
      if (range && ((range->min && size < *range->min) || (range->max && size > *range->max))) {
        faults.push_back(location + ", but the model was exported for " +
                         (range->min ? std::to_string(*range->min) : "0") +
                         (range->max ? str_cat(" to ", *range->max) : " or more"));
        out_of_range = true;
      }
    }
  }
  if (faults.empty()) return;
  std::string hint;
  if (sizes_differ) {
    hint = !size_hint.empty()
               ? size_hint
               : "the model was exported for these sizes: pass microbatches of exactly that size, "
                 "or export it with a dynamic batch";
  }
  if (!sizes_differ && out_of_range)
    hint = "pass microbatches of a size in that range, or export the model with a wider range";
  throw ShapeError(join(faults, "; "), {}, hint);
}

}  // namespace penstock::graph
