// Writes graphs as text; docs/graph.md describes the format.
#include "base/json.h"
#include "base/text.h"
#include "graph/ir/enums.h"
#include "graph/ir/module_path.h"

#include <penstock/graph/graph_text.h>
#include <penstock/value/tensor_meta.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceType.h>

#include <charconv>

namespace penstock::graph {
namespace {

using c10::IValue;
using Kind = value::Structure::Kind;

std::string double_text(double number) {
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";  // 'n' is in inf and nan
  return text;
}

std::string constant_text(const IValue& constant, EnumKind kind) {
  if (constant.isNone()) return "None";
  if (constant.isBool()) return constant.toBool() ? "True" : "False";
  if (constant.isInt()) return enum_text(kind, constant.toInt());
  if (constant.isDouble()) return double_text(constant.toDouble());
  if (constant.isString()) return json_quote(constant.toStringRef());
  if (constant.isDevice()) return "device(" + json_quote(constant.toDevice().str()) + ")";
  if (constant.isComplexDouble()) {
    const auto number = constant.toComplexDouble();
    return "complex(" + double_text(number.real()) + ", " + double_text(number.imag()) + ")";
  }
  if (constant.isTensor()) {
    // Tensor constants are always wrapped numbers; all other tensors are slots.
    if (!constant.toTensor().defined()) return "None";
    return constant_text(IValue(constant.toTensor().item()), EnumKind::None);
  }
  if (constant.isList()) {
    std::vector<std::string> items;
    for (const IValue& item : constant.toListRef()) items.push_back(constant_text(item, kind));
    return "[" + join(items, ", ") + "]";
  }
  return "<" + constant.tagKind() + ">";
}

std::string arg_text(const Graph& graph, const Arg& arg, EnumKind kind) {
  if (const IValue* constant = arg.constant()) return constant_text(*constant, kind);
  if (const ValueId* id = arg.value()) return "%" + graph.value(*id).name;
  std::vector<std::string> items;
  for (const Arg& item : *arg.list()) items.push_back(arg_text(graph, item, kind));
  return "[" + join(items, ", ") + "]";
}

std::string type_text(const Value& value) {
  switch (value.type) {
    case ValueType::Tensor:
      return value.meta ? to_string(*value.meta) : "tensor";
    case ValueType::Int:
      return value.expression.empty() ? "int" : "int " + json_quote(value.expression);
    case ValueType::Float:
      return "float";
    case ValueType::Bool:
      return "bool";
  }
  return {};
}

std::string defined(const Graph& graph, ValueId id) {
  if (id == kUnusedValue) return "_";
  const Value& value = graph.value(id);
  const std::string type = type_text(value);
  return "%" + value.name + (type == "tensor" ? "" : " : " + type);
}

std::string results_text(const Graph& graph, const std::vector<Result>& results) {
  std::vector<std::string> parts;
  for (const Result& result : results) {
    std::vector<std::string> items;
    for (const ValueId id : result.ids) items.push_back(defined(graph, id));
    parts.push_back(result.is_list ? "[" + join(items, ", ") + "]" : join(items, ", "));
  }
  return parts.empty() ? "" : join(parts, ", ") + " = ";
}

std::string mode_text(const NodeMode& mode) {
  std::string text;
  switch (mode.grad) {
    case GradFlag::Inherit:
      break;
    case GradFlag::On:
      text += " grad";
      break;
    case GradFlag::Off:
      text += " no_grad";
      break;
  }
  for (const Autocast& cast : mode.autocast) {
    text += str_cat(" autocast(", c10::DeviceTypeName(cast.device, true), ", ", value::dtype_name(cast.dtype),
                    ", ", (cast.enabled ? "True" : "False"), ", ", (cast.cache ? "True" : "False"), ", ",
                    cast.region, ")");
  }
  return text;
}

std::string_view element_prefix(value::ElementKind kind) {
  switch (kind) {
    case value::ElementKind::Any:
      return "";
    case value::ElementKind::Tensor:
      return "Tensor";
    case value::ElementKind::Int:
      return "Int";
    case value::ElementKind::Double:
      return "Double";
    case value::ElementKind::Bool:
      return "Bool";
    case value::ElementKind::String:
      return "String";
  }
  return "";
}

template <class Leaf>
std::string tree_text(const value::Structure& structure, std::size_t& next, const Leaf& leaf) {
  if (structure.kind == Kind::Leaf) return leaf(next++);
  std::vector<std::string> items;
  for (std::size_t i = 0; i < structure.children.size(); ++i) {
    std::string key;
    if (structure.kind == Kind::Dict) {
      const auto* name = std::get_if<std::string>(&structure.keys[i]);
      key = (name ? json_quote(*name) : std::to_string(std::get<std::int64_t>(structure.keys[i]))) + ": ";
    }
    items.push_back(key + tree_text(structure.children[i], next, leaf));
  }
  const std::string inside = join(items, ", ");
  if (structure.kind == Kind::Tuple) return "(" + inside + (items.size() == 1 ? ",)" : ")");
  const std::string prefix(element_prefix(structure.element));
  return structure.kind == Kind::List ? prefix + "[" + inside + "]" : prefix + "{" + inside + "}";
}

std::string slot_text(const Graph& graph, const Slot& slot) {
  std::vector<std::string> names;
  for (const std::string& name : slot.names) names.push_back(json_quote(name));
  std::string_view kind;
  switch (slot.kind) {
    case Slot::Kind::Parameter:
      kind = slot.requires_grad ? "param " : "frozen ";
      break;
    case Slot::Kind::Buffer:
      kind = slot.persistent ? "buffer " : "volatile ";
      break;
    case Slot::Kind::Constant:
      kind = "const ";
      break;
  }
  return std::string(kind) + defined(graph, slot.value) + " = " + join(names, ", ");
}

}  // namespace

std::string to_string(const Graph& graph, const Node& node) {
  if (node.kind == Node::Kind::Split)
    return "pipe_split" + (node.module.empty() ? "" : " @ " + module_text(node));
  std::vector<std::string> args;
  for (std::size_t i = 0; i < node.args.size(); ++i) {
    const EnumKind kind = node.op ? enum_kind(node.op->schema().arguments()[i]) : EnumKind::None;
    args.push_back(arg_text(graph, node.args[i], kind));
  }
  return results_text(graph, node.results) + node.name() + "(" + join(args, ", ") + ")" +
         (node.module.empty() ? "" : " @ " + module_text(node)) + mode_text(node.mode);
}

std::string to_string(const Graph& graph) {
  std::size_t next = 0;
  const auto input = [&](std::size_t i) {
    const GraphInput& leaf = graph.inputs[i];
    return defined(graph, leaf.value) +
           (leaf.constant ? " = " + constant_text(*leaf.constant, EnumKind::None) : "");
  };
  std::string text = "graph {\n  inputs " + tree_text(graph.input_structure, next, input) + "\n";
  for (const SymbolRange& range : graph.symbols) {
    text += "  symbol " + json_quote(range.symbol) + " from " +
            (range.min ? std::to_string(*range.min) : "None") + " to " +
            (range.max ? std::to_string(*range.max) : "None") + "\n";
  }
  for (const Slot& slot : graph.slots) text += "  " + slot_text(graph, slot) + "\n";
  for (const Node& node : graph.nodes) text += "  " + to_string(graph, node) + "\n";
  for (const Mutation& mutation : graph.mutations) {
    text +=
        "  write %" + graph.value(mutation.target).name + " <- %" + graph.value(mutation.from).name + "\n";
  }
  next = 0;
  const auto output = [&](std::size_t i) { return arg_text(graph, graph.outputs[i], EnumKind::None); };
  return text + "  return " + tree_text(graph.output_structure, next, output) + "\n}\n";
}

}  // namespace penstock::graph
