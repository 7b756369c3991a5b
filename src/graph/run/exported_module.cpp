// Runs a graph on the tensors that are registered in a torch::nn module. An interpreter is compiled for each
// combination of training modes that is used, and shared by the threads that call the model.
#include "base/text.h"
#include "graph/passes/eval_mode.h"
#include "graph/run/exported_access.h"
#include "graph/run/exported_tree.h"
#include "graph/run/interpreter.h"
#include "value/tensor_storage.h"

#include <penstock/graph/error.h>
#include <penstock/value/tensor_meta.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <mutex>
#include <ostream>

namespace penstock::graph {
namespace {

const char* const kExportSizes =
    "the model was exported for these sizes: pass tensors of these sizes, or export it with dynamic_shapes";

bool is_positional(const std::string& path) {
  return path.starts_with("args[");
}

//! The arguments of the model for messages: `x float32[2, 3], mask=bool[2]`.
std::string arguments_text(const Graph& graph) {
  const std::vector<std::string> paths = graph.input_paths();
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const Value& value = graph.value(graph.inputs[i].value);
    const std::string what = graph.inputs[i].constant ? "a constant"
                             : value.meta             ? to_string(*value.meta)
                                                      : "a value";
    texts.push_back(is_positional(paths[i]) ? value.name + " " + what : paths[i] + "=" + what);
  }
  return join(texts, ", ");
}

//! Throws UsageError if an argument is missing or not known.
void check_argument_names(const Graph& graph, const value::Args& args, const value::Kwargs& kwargs) {
  if (graph.input_structure.children.size() != 2) return;
  const auto hint = [&] { return "the arguments are (" + arguments_text(graph) + ")"; };  // only for errors
  const std::size_t wanted = graph.input_structure.children[0].children.size();
  if (args.size() != wanted) {
    throw UsageError(
        str_cat("the model takes ", wanted, " positional arguments, but ", args.size(), " were given"), {},
        hint());
  }
  std::vector<std::string> keywords;
  for (const value::DictKey& key : graph.input_structure.children[1].keys) {
    if (const auto* name = std::get_if<std::string>(&key)) keywords.push_back(*name);
  }
  for (const std::string& name : keywords) {
    if (!kwargs.contains(name))
      throw UsageError("the keyword argument " + quote(name) + " is missing", {}, hint());
  }
  for (const auto& [name, value] : kwargs) {
    if (std::find(keywords.begin(), keywords.end(), name) == keywords.end())
      throw UsageError("the model has no keyword argument " + quote(name), {}, hint());
  }
}

//! Throws ShapeError if a tensor does not have the shape that the graph was exported with.
void check_tensor_shapes(const Graph& graph, const std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& meta = graph.value(graph.slots[i].value).meta;
    if (!meta) continue;
    const at::IntArrayRef sizes = tensors[i].sizes();
    const bool same = std::equal(sizes.begin(), sizes.end(), meta->sizes.begin(), meta->sizes.end(),
                                 [](std::int64_t size, const Dim& dim) { return size == dim.size; });
    if (same) continue;
    throw ShapeError(quote(graph.slots[i].names[0]) + " has shape " + format_shape(sizes) + ", expected " +
                         to_string(*meta),
                     {},
                     "call a sharded model through penstock::runtime::call; submodules of an exported model "
                     "cannot be units of fully_shard");
  }
}

//! Copies of the tensors. Those that share memory share memory in the copy, too.
std::vector<at::Tensor> copies_of(const Graph& graph, const std::vector<at::Tensor>& tensors) {
  std::map<std::optional<std::int32_t>, int> holders;
  for (const Slot& slot : graph.slots) ++holders[graph.value(slot.value).storage];
  std::map<const void*, at::Tensor> memories;
  std::vector<at::Tensor> copies;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor plain = tensors[i].detach();
    const std::optional<std::int32_t> storage = graph.value(graph.slots[i].value).storage;
    at::Tensor copy;
    if (storage && holders[storage] > 1 && plain.has_storage()) {
      at::Tensor& memory = memories[plain.storage().unsafeGetStorageImpl()];
      if (!memory.defined()) {
        const auto elements = static_cast<std::int64_t>(plain.storage().nbytes() / plain.element_size());
        memory = at::empty({0}, plain.options()).set_(plain.storage(), 0, {elements}, {1}).clone();
      }
      copy = memory.as_strided(plain.sizes(), plain.strides(), plain.storage_offset());
    } else {
      copy = plain.clone();
    }
    copies.push_back(copy.set_requires_grad(tensors[i].requires_grad()));
  }
  return copies;
}

//! The tensor on another device or in another dtype. A meta tensor gets uninitialized memory.
at::Tensor converted(const at::Tensor& tensor, at::Device device, at::ScalarType dtype, bool non_blocking) {
  if (tensor.is_meta()) return at::empty_like(tensor, tensor.options().device(device).dtype(dtype));
  return tensor.detach().to(device, dtype, non_blocking);
}

//! Export records the dtypes of tensors as assertions. They do not hold after a conversion.
void remove_dtype_assertions(Graph& graph) {
  std::erase_if(graph.nodes, [](const Node& node) { return node.name() == "aten::_assert_tensor_metadata"; });
}

}  // namespace

struct ExportedModuleImpl::Impl {
  Graph graph;
  std::vector<at::Tensor> tensors;  //!< one per slot; parameters and buffers are registered in `tree`
  ModuleTree tree;
  std::optional<at::Device> device{};
  std::string conversion{};  //!< describes a change of the dtype, for errors
  std::mutex mutex{};        //!< guards `compiled`
  std::map<std::vector<bool>, std::shared_ptr<const Interpreter>> compiled{};  //!< by training modes

  Impl(torch::nn::Module& root, Graph model, std::vector<at::Tensor> slots)
      : graph(std::move(model)), tensors(std::move(slots)), tree(root, graph, tensors) {}

  std::shared_ptr<const Interpreter> interpreter() {
    const std::vector<bool> modes = tree.modes();
    const std::lock_guard lock(mutex);
    std::shared_ptr<const Interpreter>& found = compiled[modes];
    if (!found) {
      const auto evaluates = [&](const std::string& path) { return !modes[tree.index_of(path)]; };
      found = std::make_shared<const Interpreter>(eval_graph(graph, evaluates), device);
    }
    return found;
  }

  std::vector<c10::IValue> run(const value::Args& args, const value::Kwargs& kwargs) {
    check_argument_names(graph, args, kwargs);
    std::vector<c10::IValue> leaves = flatten_inputs(graph, args, kwargs);
    check_inputs(graph, leaves, kExportSizes);
    check_tensor_shapes(graph, tensors);
    try {
      return interpreter()->run(std::move(leaves), tensors);
    } catch (const OperatorError& error) {
      if (conversion.empty()) throw;
      throw OperatorError(error.message(), error.context(),
                          conversion +
                              ", but operators keep the dtypes that export recorded; convert the model in "
                              "Python before you export it");
    }
  }
};

ExportedModuleImpl::ExportedModuleImpl(Graph graph, std::vector<at::Tensor> tensors)
    : torch::nn::Module("ExportedModule") {
  if (tensors.size() != graph.slots.size()) {
    throw UsageError(str_cat("the graph needs ", graph.slots.size(), " tensors, not ", tensors.size()));
  }
  impl_ = std::make_unique<Impl>(*this, std::move(graph), std::move(tensors));
}

ExportedModuleImpl::~ExportedModuleImpl() = default;

std::vector<std::string> ExportedModuleImpl::input_names() const {
  std::vector<std::string> names = graph().input_paths();
  for (std::size_t i = 0; i < names.size(); ++i) {
    // Positional arguments have only the name of their value, which Python derives from the parameter.
    if (is_positional(names[i])) names[i] = graph().value(graph().inputs[i].value).name;
  }
  return names;
}

const Graph& ExportedModuleImpl::graph() const {
  return impl_->graph;
}

c10::IValue ExportedModuleImpl::forward(const value::Args& args, const value::Kwargs& kwargs) {
  return unflatten(impl_->run(args, kwargs), graph().output_structure);
}

std::map<std::string, at::Tensor> ExportedModuleImpl::forward_named(const value::Args& args,
                                                                    const value::Kwargs& kwargs) {
  const std::vector<c10::IValue> leaves = impl_->run(args, kwargs);
  const std::vector<std::string> paths = graph().output_paths();
  std::map<std::string, at::Tensor> named;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].isTensor()) named.emplace(paths[i], leaves[i].toTensor());
  }
  return named;
}

at::Tensor ExportedModuleImpl::only_tensor(const c10::IValue& output) const {
  if (output.isTensor()) return output.toTensor();
  throw UsageError("the model returns " + to_string(graph().output_structure) + ", not one tensor", {},
                   "call forward_named, which returns " + join(graph().output_paths(), ", "));
}

torch::OrderedDict<std::string, at::Tensor> ExportedModuleImpl::state_dict() const {
  torch::OrderedDict<std::string, at::Tensor> state;
  for (const auto& [name, slot] : impl_->tree.state(*this)) state.insert(name, impl_->tensors[slot].detach());
  return state;
}

std::shared_ptr<torch::nn::Module> ExportedModuleImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<ExportedModuleImpl>(graph(), copies_of(graph(), impl_->tensors));
  copy->impl_->device = impl_->device;
  copy->impl_->conversion = impl_->conversion;
  copy->impl_->tree.set_modes(impl_->tree.modes());
  if (device) copy->to(*device);
  return copy;
}

void ExportedModuleImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  convert(device, dtype, non_blocking);
}
void ExportedModuleImpl::to(torch::Dtype dtype, bool non_blocking) {
  convert(std::nullopt, dtype, non_blocking);
}
void ExportedModuleImpl::to(torch::Device device, bool non_blocking) {
  convert(device, std::nullopt, non_blocking);
}

void ExportedModuleImpl::convert(std::optional<torch::Device> device, std::optional<torch::Dtype> dtype,
                                 bool non_blocking) {
  if (dtype && !at::isFloatingType(*dtype)) {
    throw UsageError("a model cannot be converted to " + value::dtype_name(*dtype), {},
                     "pass a floating-point dtype");
  }
  for (std::size_t i = 0; i < impl_->tensors.size(); ++i) {
    at::Tensor& tensor = impl_->tensors[i];
    const bool is_constant = graph().slots[i].kind == Slot::Kind::Constant;
    const bool casts = dtype && !is_constant && tensor.is_floating_point();
    const at::Device on = device.value_or(tensor.device());
    const at::ScalarType as = casts ? *dtype : tensor.scalar_type();
    if (tensor.device() == on && tensor.scalar_type() == as) continue;
    if (as != tensor.scalar_type() && impl_->conversion.empty()) {
      impl_->conversion = "the model was exported in " + value::dtype_name(tensor.scalar_type()) +
                          " and converted to " + value::dtype_name(as);
    }
    const at::Tensor moved = converted(tensor, on, as, non_blocking);
    if (is_constant) {
      tensor = moved;
      continue;
    }
    const at::Tensor grad = tensor.grad();
    value::TensorStorage::move_to(tensor, moved);  // other handles, such as an optimizer's, see it too
    if (grad.defined()) tensor.mutable_grad() = grad.to(on, as, non_blocking);
  }
  if (device) impl_->device = device;
  if (dtype) {
    remove_dtype_assertions(impl_->graph);
    for (const GraphInput& input : graph().inputs) {
      auto& meta = impl_->graph.value(input.value).meta;
      if (meta && at::isFloatingType(meta->dtype)) meta->dtype = *dtype;
    }
  }
  const std::lock_guard lock(impl_->mutex);
  impl_->compiled.clear();
}

void ExportedModuleImpl::pretty_print(std::ostream& stream) const {
  stream << name() << "(" << arguments_text(graph()) << ")";
}

GraphModule Access::graph_module(const ExportedModuleImpl& module) {
  return {module.impl_->graph, module.impl_->tensors, module.impl_->device};
}

void Access::adopt(ExportedModuleImpl& module, const GraphModule& changed) {
  ExportedModuleImpl::Impl& impl = *module.impl_;
  for (std::size_t i = 0; i < impl.tensors.size(); ++i) {
    const Slot& slot = impl.graph.slots[i];
    if (slot.kind == Slot::Kind::Parameter && !impl.tensors[i].is_same(changed.tensors()[i]))
      impl.tree.replace_parameter(slot.names[0], changed.tensors()[i]);
  }
  impl.graph = changed.graph();
  impl.tensors = changed.tensors();
  const std::lock_guard lock(impl.mutex);
  impl.compiled.clear();
}

}  // namespace penstock::graph
