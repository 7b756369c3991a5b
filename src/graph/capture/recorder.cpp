// Maps tensors to values by identity and operator calls to nodes. Rejects everything that would produce a
// wrong graph.
#include "graph/capture/recorder.h"

#include "base/text.h"
#include "graph/ir/meta.h"
#include "graph/ir/module_path.h"
#include "graph/ir/operators.h"
#include "graph/ir/schema.h"
#include "graph/passes/passes.h"

#include <penstock/base/error.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>

namespace penstock::graph {
namespace {

using c10::IValue;

//! Operators that return tensor elements to the host, where control flow may depend on them.
bool reads_elements(const std::string& name) {
  static constexpr std::array names = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero",
                                       "aten::equal", "aten::allclose"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

//! Operators that return uninitialized memory.
bool leaves_unfilled(const std::string& name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
}

// The autograd key of the device of the first tensor argument; that of the CPU if there is none.
c10::DispatchKey autograd_key(const torch::jit::Stack& stack, std::size_t arguments) {
  for (const IValue& value : torch::jit::last(stack, arguments)) {
    if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().is_meta()) continue;
    return c10::getAutogradKeyFromBackend(value.toTensor().key_set().highestBackendKey());
  }
  return c10::DispatchKey::AutogradCPU;
}

Autocast autocast_of(c10::DeviceType device) {
  return {.device = device,
          .dtype = at::autocast::get_autocast_dtype(device),
          .enabled = at::autocast::is_autocast_enabled(device),
          .cache = at::autocast::is_autocast_cache_enabled()};
}

ValueMeta meta_of(const at::Tensor& tensor) {
  ValueMeta meta{.dtype = tensor.scalar_type()};
  for (const std::int64_t size : tensor.sizes()) meta.sizes.push_back({.size = size});
  return meta;
}

std::string parent_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

std::string common_module(const std::string& a, const std::string& b) {
  std::size_t same = 0;
  for (std::size_t i = 0; i <= std::min(a.size(), b.size()); ++i) {
    const bool end_a = i == a.size() || a[i] == '.', end_b = i == b.size() || b[i] == '.';
    if (end_a && end_b) same = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, same);
}

//! Assigns operators that read no parameter to the common parent module of their neighbors.
void fill_modules(std::vector<Node>& nodes, const std::vector<bool>& scoped) {
  std::size_t before = nodes.size();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].module.empty() || scoped[i]) {
      before = i;
      continue;
    }
    std::size_t after = i;
    while (after < nodes.size() && nodes[after].module.empty() && !scoped[after]) ++after;
    const bool inside = before < nodes.size() && after < nodes.size();
    const std::string module = inside ? common_module(nodes[before].module, nodes[after].module) : "";
    for (; i < after; ++i) nodes[i].module = module;
    --i;
    before = i;
    if (after < nodes.size()) before = after;
  }
}

}  // namespace

Recorder::Recorder(const ModelTensors& model)
    : base_grad_(c10::GradMode::is_enabled()),
      base_cpu_(autocast_of(c10::DeviceType::CPU)),
      base_accelerator_(autocast_of(c10::DeviceType::CUDA)),
      last_cpu_(base_cpu_),
      last_accelerator_(base_accelerator_) {
  const auto add = [&](Slot::Kind kind, const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto it = known_.find(tensor.unsafeGetTensorImpl());
    if (it != known_.end()) {
      for (Slot& slot : captured_.graph.slots) {
        if (slot.value == it->second.value) slot.names.push_back(name);
      }
      return;
    }
    std::string value = name;
    std::replace(value.begin(), value.end(), '.', '_');
    const ValueId id = define((kind == Slot::Kind::Parameter ? "p_" : "b_") + value, tensor);
    captured_.graph.slots.push_back(
        {.kind = kind, .value = id, .names = {name}, .requires_grad = tensor.requires_grad()});
    captured_.tensors.push_back(tensor);
    owners_[id.value] = parent_of(name);
  };
  for (const auto& [name, tensor] : model.parameters) add(Slot::Kind::Parameter, name, tensor);
  for (const auto& [name, tensor] : model.buffers) add(Slot::Kind::Buffer, name, tensor);
}

void Recorder::refuse(const std::string& what, const std::string& hint) const {
  std::string location = current_;
  const auto& nodes = captured_.graph.nodes;
  const auto last =
      std::find_if(nodes.rbegin(), nodes.rend(), [](const Node& node) { return !node.module.empty(); });
  if (!scopes_.empty()) {
    location += " of module " + scope();
  } else if (last != nodes.rend()) {  // without a ModuleScope, name the last known module
    location += " after module " + last->module;
  }
  throw UsageError(what, {.op = location}, hint);
}

std::string Recorder::fresh_name(const std::string& base) {
  const int count = names_[base]++;
  if (count == 0) return base;
  return fresh_name(str_cat(base, "_", count));
}

ValueId Recorder::define(const std::string& name, const at::Tensor& tensor, bool filled) {
  Value value{.name = fresh_name(name), .meta = meta_of(tensor)};
  if (tensor.has_storage()) {
    const c10::Storage& storage = tensor.storage();
    const auto [it, fresh] =
        storages_.try_emplace(storage.unsafeGetStorageImpl(),
                              KnownStorage{storage.getWeakStorageImpl(), next_storage_, filled, {}});
    if (fresh) ++next_storage_;
    value.storage = it->second.number;
    it->second.positions.push_back({ValueId(static_cast<std::int64_t>(captured_.graph.values.size())),
                                    tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(),
                                    tensor.requires_grad()});
  } else {
    value.storage = next_storage_++;
  }
  const ValueId id = captured_.graph.add_value(std::move(value));
  known_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                          Known{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), id,
                                tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version()),
                                tensor.requires_grad()});
  return id;
}

ValueId Recorder::add_input(const std::string& name, const IValue& leaf) {
  if (leaf.isTensor() && leaf.toTensor().defined()) return define(name, leaf.toTensor());
  const ValueType type = leaf.isDouble() ? ValueType::Float
                         : leaf.isBool() ? ValueType::Bool
                                         : ValueType::Int;
  return captured_.graph.add_value({.name = fresh_name(name), .type = type});
}

void Recorder::mark_split() {
  Node mark{.kind = Node::Kind::Split};
  set_module(mark);
  captured_.graph.nodes.push_back(std::move(mark));
}

void Recorder::check_autograd(const Known& known, const at::Tensor& tensor) const {
  if (known.requires_grad || !tensor.requires_grad() || tensor.is_view()) return;
  if (known.version != static_cast<std::uint32_t>(tensor._version())) return;  // written through a view
  if (tensor.is_leaf()) {
    refuse("the forward pass sets requires_grad on a tensor", "register it as a parameter of the module");
  }
  refuse(
      "the operator reads the result of a custom autograd function, whose backward pass cannot be captured",
      "register it as an operator with an autograd kernel, or implement it with libtorch operators");
}

ValueId Recorder::lift(const at::Tensor& tensor) {
  const at::Tensor copy = tensor.detach().clone();
  storages_.erase(tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr);
  const ValueId id = define(str_cat("c_", constants_), tensor);
  captured_.graph.slots.push_back({.kind = Slot::Kind::Constant,
                                   .value = id,
                                   .names = {str_cat("constant_", constants_++)},
                                   .persistent = false});
  captured_.tensors.push_back(copy);
  return id;
}

ValueId Recorder::copy_constant(const at::Tensor& tensor, ValueId constant) {
  // A constant must not change between runs, so the operator writes to a copy.
  const KnownStorage* storage = storage_of(tensor);
  if (storage && storage->positions.size() > 1) {
    refuse("an operator writes to a constant tensor that has views", "write to a clone() of it");
  }
  Node node{.op = find_operator("aten::clone"), .args = {{constant}, {IValue()}}};
  node.results.push_back({.ids = {define("clone", tensor)}});
  const ValueId copy = node.results[0].ids[0];
  captured_.graph.value(copy).storage = next_storage_++;
  captured_.graph.nodes.push_back(std::move(node));
  return copy;
}

Recorder::KnownStorage* Recorder::storage_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  const auto it = storages_.find(tensor.storage().unsafeGetStorageImpl());
  return it == storages_.end() ? nullptr : &it->second;
}

//! Handles a new tensor with the memory of a known one, such as torch::tensor creates. This is safe as long
//! as neither requires gradients.
ValueId Recorder::alias_same_position(const at::Tensor& tensor, const KnownStorage& storage) {
  for (auto position = storage.positions.rbegin(); position != storage.positions.rend(); ++position) {
    if (tensor.sizes() != position->sizes || tensor.strides() != position->strides ||
        tensor.storage_offset() != position->offset || position->requires_grad || tensor.requires_grad()) {
      continue;
    }
    Node node{.op = find_operator("aten::detach"), .args = {{position->value}}};
    node.results.push_back({.ids = {define("detach", tensor)}});
    captured_.graph.nodes.push_back(node);
    return node.results[0].ids[0];
  }
  refuse("an operator reads a tensor that shares memory with another tensor without a recorded view",
         "use detach() instead of data(), and view operators instead of from_blob");
}

ValueId Recorder::read(const at::Tensor& tensor, bool written) {
  KnownStorage* storage = storage_of(tensor);
  const bool filled = !storage || storage->filled;
  const auto it = known_.find(tensor.unsafeGetTensorImpl());
  if (it != known_.end()) check_autograd(it->second, tensor);
  if (it != known_.end() && (filled || written)) {
    if (storage) storage->filled = true;
    const ValueId id = it->second.value;
    const Slot* slot = written ? captured_.graph.find_slot(id) : nullptr;
    return slot && slot->kind == Slot::Kind::Constant ? copy_constant(tensor, id) : id;
  }
  if (storage && filled) return alias_same_position(tensor, *storage);
  if (tensor.requires_grad()) {
    refuse("an operator reads a tensor that requires gradients but is not a parameter of the module",
           "register it with register_parameter");
  }
  const ValueId constant = lift(tensor);  // contains host data
  return written ? copy_constant(tensor, constant) : constant;
}

Arg Recorder::argument(const IValue& value, bool written) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return {IValue()};
    const bool known = known_.contains(tensor.unsafeGetTensorImpl());
    if (!known && tensor.unsafeGetTensorImpl()->is_wrapped_number()) return {value};
    return {read(tensor, written)};
  }
  if (value.isList()) {
    std::vector<Arg> items;
    bool constant = true;
    for (const IValue& item : value.toListRef()) {
      items.push_back(argument(item, written));
      constant = constant && items.back().constant();
    }
    if (!constant) return {std::move(items)};
    return {value.deepcopy()};  // the caller may reuse its list
  }
  if (value.isGenerator()) refuse("an operator uses its own random generator", "use the default generator");
  if (value.isStorage() || value.isStream() || value.isCustomClass() || value.isObject() ||
      value.isSymInt()) {
    refuse("an operator has an argument of unsupported type " + value.tagKind(),
           "graphs support tensors, numbers, strings and lists");
  }
  return {value};
}

NodeMode Recorder::mode(c10::DispatchKey autograd) {
  NodeMode mode;
  const bool below = c10::impl::tls_local_dispatch_key_set().excluded_.has(autograd);
  const bool grad = c10::GradMode::is_enabled() && !below;
  if (grad != base_grad_) mode.grad = grad ? GradFlag::On : GradFlag::Off;
  const Autocast cpu = autocast_of(c10::DeviceType::CPU), accelerator = autocast_of(c10::DeviceType::CUDA);
  if (cpu != last_cpu_ || accelerator != last_accelerator_) ++region_;
  last_cpu_ = cpu;
  last_accelerator_ = accelerator;
  for (const auto& [now, base] : {std::pair(cpu, base_cpu_), std::pair(accelerator, base_accelerator_)}) {
    if (now == base) continue;
    mode.autocast.push_back(now);
    mode.autocast.back().region = region_;
  }
  return mode;
}

void Recorder::enter(const std::string& module) {
  const std::string path = scopes_.empty() ? module : scope() + "." + module;
  scopes_.push_back({path, calls_[path]++});
}

void Recorder::leave() {
  if (!scopes_.empty()) scopes_.pop_back();
}

std::string Recorder::scope() const {
  return scopes_.empty() ? std::string() : scopes_.back().path;
}

void Recorder::set_module(Node& node) const {
  node.module = scope();
  for (const Scope& module : scopes_) set_call(node, module.path, module.call);
  if (!scopes_.empty()) return;
  for_each_read(node, [&](ValueId id) {
    const auto owner = owners_.find(id.value);
    if (owner != owners_.end() && node.module.empty()) node.module = owner->second;
  });
}

Result Recorder::result(const std::string& name, const IValue& value, bool filled) {
  Result recorded;
  const auto add = [&](const IValue& item) {
    const bool tensor = item.isTensor() && item.toTensor().defined();
    recorded.ids.push_back(tensor ? define(name, item.toTensor(), filled) : kUnusedValue);
  };
  recorded.is_list = value.isList();
  if (!recorded.is_list) {
    add(value);
    return recorded;
  }
  for (const IValue& item : value.toListRef()) add(item);
  return recorded;
}

void Recorder::call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = op.operator_name().name;
  current_ = c10::toString(op.operator_name());
  const std::size_t arguments = schema.arguments().size();
  if (name == "aten::equal" &&
      (stack[stack.size() - 2].toTensor().is_same(stack.back().toTensor()) ||
       stack[stack.size() - 2].toTensor().sizes() != stack.back().toTensor().sizes())) {
    op.callBoxed(stack);  // attention compares its inputs for identity; this reads no elements
    return;
  }
  if (reads_elements(name)) {
    refuse("the forward pass reads a number from a tensor, so its control flow may depend on the data",
           "keep it a tensor (torch::where and masks instead of branches), or compute it outside the "
           "forward");
  }
  if (name == "aten::set_" || name == "aten::set_data") {
    refuse("the forward pass replaces the memory of a tensor", "use copy_() instead");
  }
  Node node{.op = intern_operator(op), .mode = mode(autograd_key(stack, arguments))};
  node.args.reserve(arguments);
  for (std::size_t i = 0; i < arguments; ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    node.args.push_back(argument(stack[stack.size() - arguments + i], alias && alias->isWrite()));
  }
  set_module(node);
  if (without_memory) {
    call_without_memory(op, stack);
  } else {
    op.callBoxed(stack);
  }
  const std::size_t returns = schema.returns().size();
  const std::string base = name.substr(name.find("::") + 2);
  // Skip operators that return no tensors: they only query metadata.
  bool tensors = returns == 0;
  for (std::size_t i = 0; i < returns; ++i) {
    const IValue& value = stack[stack.size() - returns + i];
    tensors = tensors || value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
  }
  if (!tensors) return;
  for (std::size_t i = 0; i < returns; ++i) {
    node.results.push_back(result(base, stack[stack.size() - returns + i], !leaves_unfilled(name)));
  }
  captured_.graph.nodes.push_back(std::move(node));
}

Arg Recorder::output(const IValue& leaf) {
  current_ = "return";
  if (!leaf.isTensor() || !leaf.toTensor().defined()) return {leaf};
  return {read(leaf.toTensor(), false)};
}

Captured Recorder::finish() {
  std::vector<bool> scoped;
  for (const Node& node : captured_.graph.nodes) scoped.push_back(node.kind == Node::Kind::Split);
  fill_modules(captured_.graph.nodes, scoped);
  return std::move(captured_);
}

}  // namespace penstock::graph
