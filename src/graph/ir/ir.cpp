// Implements names, sizes, module paths and operator handles of graphs.
#include "base/json.h"
#include "base/text.h"
#include "graph/ir/module_path.h"
#include "graph/ir/operators.h"

#include <penstock/graph/ir.h>
#include <penstock/value/tensor_meta.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <mutex>

namespace penstock::graph {
namespace {

constexpr std::array<std::string_view, 27> kScalarNames = {
    "add", "sub", "mul", "floordiv", "truediv", "mod",   "pow", "neg",    "pos",
    "eq",  "ne",  "lt",  "le",       "gt",      "ge",    "and", "or",     "not",
    "max", "min", "int", "float",    "sqrt",    "trunc", "ite", "lshift", "rshift"};

void collect_output_paths(const value::Structure& structure, const std::string& here,
                          std::vector<std::string>& paths) {
  if (structure.kind == value::Structure::Kind::Leaf) {
    paths.push_back(here);
    return;
  }
  for (std::size_t i = 0; i < structure.children.size(); ++i) {
    std::string step = std::to_string(i);
    if (structure.kind == value::Structure::Kind::Dict) {
      const value::DictKey& key = structure.keys[i];
      const auto* name = std::get_if<std::string>(&key);
      step = name ? *name : std::to_string(std::get<std::int64_t>(key));
    }
    collect_output_paths(structure.children[i], here + "." + step, paths);
  }
}

}  // namespace

std::int64_t ValueMeta::numel() const {
  std::int64_t count = 1;
  for (const Dim& dim : sizes) {
    if (__builtin_mul_overflow(count, dim.size, &count)) return std::numeric_limits<std::int64_t>::max();
  }
  return count;
}

std::size_t ValueMeta::nbytes() const {
  std::size_t bytes = 0;
  const bool overflow =
      __builtin_mul_overflow(static_cast<std::size_t>(numel()), c10::elementSize(dtype), &bytes);
  return overflow ? std::numeric_limits<std::size_t>::max() : bytes;
}

std::string to_string(const ValueMeta& meta) {
  std::vector<std::string> dims;
  dims.reserve(meta.sizes.size());
  for (const Dim& dim : meta.sizes) {
    dims.push_back(str_cat((dim.expression.empty() ? "" : json_quote(dim.expression) + "="), dim.size));
  }
  return value::dtype_name(meta.dtype) + "[" + join(dims, ", ") + "]";
}

std::string_view to_string(ScalarOp op) {
  return kScalarNames[static_cast<std::size_t>(op)];
}

std::optional<ScalarOp> try_parse_scalar_op(std::string_view name) {
  for (std::size_t i = 0; i < kScalarNames.size(); ++i) {
    if (kScalarNames[i] == name) return static_cast<ScalarOp>(i);
  }
  return std::nullopt;
}

std::string Node::name() const {
  switch (kind) {
    case Kind::Op: {
      // c10::toString truncates the text if memory runs out.
      const c10::OperatorName& name = op->operator_name();
      return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    }
    case Kind::Scalar:
      return "scalar::" + std::string(to_string(scalar));
    case Kind::Split:
      return "pipe_split";
  }
  return {};
}

ValueId Graph::add_value(Value value) {
  values.push_back(std::move(value));
  return ValueId(static_cast<std::int64_t>(values.size()) - 1);
}

std::vector<std::string> Graph::input_paths() const {
  std::vector<std::string> paths;
  for (const std::string& path : input_structure.paths("")) {
    // The root is the tuple (args, kwargs).
    paths.push_back(path.starts_with("[0]") ? "args" + path.substr(3)
                                            : path.substr(path.starts_with("[1].") ? 4 : 0));
  }
  return paths;
}

std::vector<std::string> Graph::output_paths() const {
  std::vector<std::string> paths;
  collect_output_paths(output_structure, "output", paths);
  return paths;
}

const Slot* Graph::find_slot(ValueId value) const {
  for (const Slot& slot : slots) {
    if (slot.value == value) return &slot;
  }
  return nullptr;
}

const c10::OperatorHandle* intern_operator(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto* handles = new std::map<std::pair<std::string, std::string>, c10::OperatorHandle>;
  const std::lock_guard lock(mutex);
  const c10::OperatorName& name = op.operator_name();
  return &handles->try_emplace({name.name, name.overload_name}, op).first->second;
}

const c10::OperatorHandle* find_operator(const std::string& name) {
  const std::size_t colons = name.find("::");
  const std::size_t dot = name.find('.', colons == std::string::npos ? 0 : colons);
  const c10::OperatorName parts(name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1));
  const auto op = c10::Dispatcher::singleton().findSchema(parts);
  return op ? intern_operator(*op) : nullptr;
}

bool within(std::string_view path, std::string_view module) {
  return path == module || (path.starts_with(module) && path[module.size()] == '.');
}

std::size_t components(std::string_view path) {
  return path.empty() ? 0 : 1 + static_cast<std::size_t>(std::count(path.begin(), path.end(), '.'));
}

void set_call(Node& node, std::string_view module, int call) {
  const std::size_t size = components(module);
  if (size == 0 || call <= 0 || !within(node.module, module)) return;
  if (node.calls.size() < size) node.calls.resize(size, 0);
  node.calls[size - 1] = call;
}

int call_of(const Node& node, std::string_view module) {
  const std::size_t size = components(module);
  return size > 0 && size <= node.calls.size() ? node.calls[size - 1] : 0;
}

std::string module_text(const Node& node) {
  std::string text;
  std::size_t component = 0;
  const auto finish = [&] {
    const int call = component < node.calls.size() ? node.calls[component] : 0;
    if (call > 0) text += str_cat("@", call);
    ++component;
  };
  for (const char c : node.module) {
    if (c == '.') finish();
    text += c;
  }
  if (!node.module.empty()) finish();
  return text;
}

ModuleCall parse_module_call(std::string_view text) {
  const std::size_t at = text.rfind('@');
  int call = 0;
  if (at == std::string_view::npos) return {std::string(text)};
  const auto [end, error] = std::from_chars(text.data() + at + 1, text.data() + text.size(), call);
  if (error != std::errc() || end != text.data() + text.size() || call < 0) return {std::string(text)};
  return {std::string(text.substr(0, at)), call};
}

void read_module_text(std::string_view text, Node& node) {
  node.module.clear();
  node.calls.clear();
  std::vector<int> calls;
  bool repeated = false;
  while (!text.empty()) {
    const std::size_t dot = text.find('.');
    const ModuleCall part = parse_module_call(text.substr(0, dot));
    node.module += (calls.empty() ? "" : ".") + part.module;
    calls.push_back(part.call.value_or(0));
    repeated = repeated || calls.back() > 0;
    text = dot == std::string_view::npos ? std::string_view() : text.substr(dot + 1);
  }
  if (repeated) node.calls = std::move(calls);
}

}  // namespace penstock::graph
