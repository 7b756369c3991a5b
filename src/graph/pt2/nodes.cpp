// Reads each kind of archive node: operators, arithmetic on sizes, marks, regions.
#include "graph/pt2/nodes.h"

#include "base/text.h"
#include "graph/ir/enums.h"
#include "graph/ir/scalars.h"
#include "graph/ir/schema.h"
#include "graph/pt2/fields.h"

#include <penstock/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>

namespace penstock::graph {
namespace {

using c10::IValue;

constexpr int kMaxRegionDepth = 32;

[[noreturn]] void refuse(const std::string& what, const std::string& target, const std::string& module,
                         const std::string& hint) {
  throw UsageError(what, {.op = target + (module.empty() ? "" : " of module " + module)}, hint);
}

//! Converts `torch.ops.aten.add.Tensor` to `aten::add.Tensor`. Returns "" if the target is not an operator.
std::string operator_name(const std::string& target) {
  const std::string prefix = "torch.ops.";
  if (!target.starts_with(prefix)) return {};
  const std::size_t space = target.find('.', prefix.size());
  const std::size_t overload = space == std::string::npos ? space : target.find('.', space + 1);
  if (overload == std::string::npos) return {};
  std::string name = target.substr(prefix.size(), space - prefix.size()) +
                     "::" + target.substr(space + 1, overload - space - 1);
  const std::string variant = target.substr(overload + 1);
  return variant == "default" ? name : name + "." + variant;
}

std::optional<ScalarOp> scalar_target(std::string target) {
  for (const std::string prefix : {"_operator.", "math.", "torch.sym_", "torch._sym_"}) {
    if (!target.starts_with(prefix)) continue;
    target.erase(0, prefix.size());
    if (target.ends_with("_")) target.pop_back();  // and_, or_
    return try_parse_scalar_op(target);
  }
  return std::nullopt;
}

ValueType scalar_type(const std::string& kind) {
  return kind == "as_sym_float" ? ValueType::Float : kind == "as_sym_bool" ? ValueType::Bool : ValueType::Int;
}

}  // namespace

ValueId Pt2Nodes::define(Scope& scope, const std::string& name, ValueType type, const std::string& where) {
  Value value{.name = name, .type = type};
  const bool plain = !name.empty() && name.find_first_of(" \t\r\n(){}[]\",=:%") == std::string::npos;
  if (!plain) fail_at(where, "invalid value name " + quote(name));
  for (int i = 1; !used_names_.insert(value.name).second; ++i) value.name = str_cat(name, ".", i);
  if (type == ValueType::Tensor) {
    if (const JsonValue* metas = optional_field(*scope.graph, "tensor_values", where)) {
      if (const JsonValue* meta = optional_field(*metas, name, where)) value.meta = pt2_meta(*meta, where);
    }
  } else if (type == ValueType::Int) {
    const JsonValue* sizes = optional_field(*scope.graph, "sym_int_values", where);
    if (const JsonValue* size = sizes ? optional_field(*sizes, name, where) : nullptr) {
      value.expression = pt2_dim(*size, where).expression;
    }
  }
  const ValueId id = graph_.add_value(std::move(value));
  bind(scope, name, {id}, where);
  return id;
}

void Pt2Nodes::bind(Scope& scope, const std::string& name, Arg arg, const std::string& where) {
  if (!scope.names.emplace(name, std::move(arg)).second)
    fail_at(where, "the name " + quote(name) + " is used twice");
}

const Arg& Pt2Nodes::lookup(const Scope& scope, const std::string& name, const std::string& where) const {
  const auto it = scope.names.find(name);
  if (it == scope.names.end()) fail_at(where, "the value " + quote(name) + " is not defined here");
  return it->second;
}

Arg Pt2Nodes::read_arg(const Scope& scope, const JsonValue& arg, const std::string& where) const {
  const auto [kind, json] = choice_at(arg, where);
  const JsonValue& value = *json;
  const auto named = [&](const JsonValue& item) -> Arg {
    return lookup(scope, string_at(field(item, "name", where), where), where);
  };
  const auto either =
      [&](const JsonValue& item) -> Arg {  // SymIntArgument and similar, OptionalTensorArgument
    const auto [which, inner] = choice_at(item, where);
    if (which == "as_name") return lookup(scope, string_at(*inner, where), where);
    if (which == "as_tensor") return named(*inner);
    if (which == "as_int") return {IValue(integer_at(*inner, where))};
    if (which == "as_float") return {IValue(real_at(*inner, where))};
    if (which == "as_bool") return {IValue(bool_at(*inner, where))};
    if (which == "as_none") return {IValue()};
    fail_at(where, "unknown argument " + which);
  };
  const auto list = [&](const auto& item) -> Arg {
    std::vector<Arg> items;
    bool constant = true;
    for (const JsonValue& entry : array_at(value, where)) {
      items.push_back(item(entry));
      if (items.back().list()) fail_at(where, "nested lists are not supported");
      constant = constant && items.back().constant();
    }
    if (!constant) return {std::move(items)};
    c10::impl::GenericList constants(c10::AnyType::get());
    for (const Arg& entry : items) constants.push_back(*entry.constant());
    return {IValue(constants)};
  };
  if (kind == "as_none") return {IValue()};
  if (kind == "as_tensor") return named(value);
  if (kind == "as_tensors") return list(named);
  if (kind == "as_int") return {IValue(integer_at(value, where))};
  if (kind == "as_float") return {IValue(real_at(value, where))};
  if (kind == "as_bool") return {IValue(bool_at(value, where))};
  if (kind == "as_string") return {IValue(string_at(value, where))};
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool" ||
      kind == "as_optional_tensor") {
    return either(value);
  }
  if (kind == "as_sym_ints" || kind == "as_sym_floats" || kind == "as_sym_bools" ||
      kind == "as_optional_tensors") {
    return list(either);
  }
  if (kind == "as_ints")
    return list([&](const JsonValue& item) -> Arg { return {IValue(integer_at(item, where))}; });
  if (kind == "as_floats")
    return list([&](const JsonValue& item) -> Arg { return {IValue(real_at(item, where))}; });
  if (kind == "as_bools")
    return list([&](const JsonValue& item) -> Arg { return {IValue(bool_at(item, where))}; });
  if (kind == "as_strings")
    return list([&](const JsonValue& item) -> Arg { return {IValue(string_at(item, where))}; });
  if (kind == "as_scalar_type") return {IValue(static_cast<std::int64_t>(pt2_dtype(value, where)))};
  if (kind == "as_layout") return {IValue(pt2_layout(value, where))};
  if (kind == "as_memory_format") return {IValue(pt2_memory_format(value, where))};
  if (kind == "as_device") return {IValue(pt2_device(value, where))};
  if (kind == "as_complex") {
    return {IValue(c10::complex<double>(real_at(field(value, "real", where), where),
                                        real_at(field(value, "imag", where), where)))};
  }
  throw UsageError(where + ": an argument of kind " + kind + " is not supported", {},
                   "graphs support tensors, numbers, strings, devices and lists of them");
}

void Pt2Nodes::read_nodes(Scope& scope, const std::string& where) {
  if (scope.depth > kMaxRegionDepth) fail_at(where, "regions are nested too deeply");
  const JsonArray& nodes = array_at(field(*scope.graph, "nodes", where), where);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    read_node(scope, nodes[i], str_cat(where, ", node ", i));
  }
}

void Pt2Nodes::read_node(Scope& scope, const JsonValue& json, const std::string& where) {
  const std::string target = string_at(field(json, "target", where), where);
  Node node{.mode = scope.mode};
  pt2_module(json, where, node);
  if (target.ends_with(".higher_order.wrap_with_set_grad_enabled") ||
      target.ends_with(".higher_order.wrap_with_autocast")) {
    read_region(scope, json, target, node.module, where);
    return;
  }
  if (target.find(".higher_order.") != std::string::npos) {
    refuse("control flow and other higher-order operators are not supported", target, node.module,
           "export a model whose forward does not branch on tensors");
  }
  if (const auto scalar = scalar_target(target)) {
    node.kind = Node::Kind::Scalar;
    node.scalar = *scalar;
    read_scalar(scope, json, std::move(node), where);
    return;
  }
  const std::string name = operator_name(target);
  if (name == "pippy::_pipe_split" || name == "penstock::pipe_split") {
    node.kind = Node::Kind::Split;
    graph_.nodes.push_back(std::move(node));
    return;
  }
  node.op = name.empty() ? nullptr : find_operator(name);
  if (!node.op) {
    refuse("the operator is not registered in this process", target, node.module,
           "link or load the library that registers it");
  }
  read_operator(scope, json, std::move(node), where);
}

void Pt2Nodes::read_operator(Scope& scope, const JsonValue& json, Node node, const std::string& where) {
  const c10::FunctionSchema& schema = node.op->schema();
  const std::string here =
      where + " (" + node.name() + (node.module.empty() ? "" : " of module " + node.module) + ")";
  std::vector<std::optional<Arg>> given(schema.arguments().size());
  for (const JsonValue& input : array_at(field(json, "inputs", here), here)) {
    const std::string name = string_at(field(input, "name", here), here);
    const auto index = schema.argumentIndexWithName(name);
    if (!index) fail_at(here, "the operator has no argument " + quote(name));
    auto& slot = given[static_cast<std::size_t>(*index)];
    if (slot) fail_at(here, "argument " + quote(name) + " is given twice");
    slot = read_arg(scope, field(input, "arg", here), here);
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!given[i]) {
      if (!argument.default_value()) fail_at(here, "argument " + argument.name() + " is missing");
      given[i] = Arg{*argument.default_value()};
    }
    if (const IValue* constant = given[i]->constant()) {
      const auto fit = fitted(*constant, *argument.type());
      if (!fit) fail_at(here, "argument " + argument.name() + " is not of type " + argument.type()->str());
      given[i] = Arg{*fit};
    } else if (given[i]->list()) {
      const c10::Type& type = without_optional(*argument.type());
      if (type.kind() != c10::TypeKind::ListType)
        fail_at(here, "argument " + argument.name() + " is not a list");
      std::vector<Arg> items = *given[i]->list();
      for (Arg& item : items) {
        const IValue* constant_item = item.constant();
        const auto fit = constant_item ? fitted(*constant_item, *type.containedType(0)) : std::nullopt;
        if (constant_item && !fit)
          fail_at(here, "argument " + argument.name() + " is not of type " + argument.type()->str());
        if (fit) item = Arg{*fit};
      }
      given[i] = Arg{std::move(items)};
    }
    node.args.push_back(std::move(*given[i]));
  }
  const JsonArray& outputs = array_at(field(json, "outputs", here), here);
  if (outputs.size() > schema.returns().size()) fail_at(here, "the node has more outputs than its operator");
  for (std::size_t i = 0; i < schema.returns().size(); ++i) {
    const bool is_list = schema.returns()[i].type()->kind() == c10::TypeKind::ListType;
    if (i < outputs.size()) {
      node.results.push_back(read_result(scope, outputs[i], is_list, here));
    } else if (is_list) {
      fail_at(here, "an output is missing");
    } else {
      node.results.push_back({.ids = {kUnusedValue}});
    }
  }
  try {
    check_arguments(graph_, node);
  } catch (const UsageError& error) {
    fail_at(here, error.message());
  }
  graph_.nodes.push_back(std::move(node));
}

Result Pt2Nodes::read_result(Scope& scope, const JsonValue& output, bool is_list, const std::string& where) {
  const auto [kind, value] = choice_at(output, where);
  Result result{.is_list = is_list};
  const auto tensor = [&](const JsonValue& item) {
    result.ids.push_back(
        define(scope, string_at(field(item, "name", where), where), ValueType::Tensor, where));
  };
  if (kind == "as_tensors" && is_list) {
    for (const JsonValue& item : array_at(*value, where)) tensor(item);
  } else if (kind == "as_tensor" && !is_list) {
    tensor(*value);
  } else if (kind == "as_none" && !is_list) {
    result.ids.push_back(kUnusedValue);
  } else if ((kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") && !is_list) {
    const auto [which, name] = choice_at(*value, where);
    result.ids.push_back(which == "as_name" ? define(scope, string_at(*name, where), scalar_type(kind), where)
                                            : kUnusedValue);
  } else {
    fail_at(where, "an output of kind " + kind + " does not match the operator");
  }
  return result;
}

void Pt2Nodes::read_scalar(Scope& scope, const JsonValue& json, Node node, const std::string& where) {
  for (const JsonValue& input : array_at(field(json, "inputs", where), where)) {
    Arg arg = read_arg(scope, field(input, "arg", where), where);
    const ValueId* id = arg.value();
    const IValue* constant = arg.constant();
    const bool number = constant && (constant->isInt() || constant->isDouble() || constant->isBool());
    if (!number && !(id && graph_.value(*id).type != ValueType::Tensor))
      fail_at(where, "an operand is not a number");
    node.args.push_back(std::move(arg));
  }
  if (node.args.size() != scalar_arity(node.scalar)) fail_at(where, "wrong number of operands");
  const JsonArray& outputs = array_at(field(json, "outputs", where), where);
  if (outputs.size() != 1) fail_at(where, "an arithmetic node must have one output");
  node.results.push_back(read_result(scope, outputs[0], false, where));
  graph_.nodes.push_back(std::move(node));
}

void Pt2Nodes::read_region(Scope& scope, const JsonValue& json, const std::string& target,
                           const std::string& module, const std::string& where) {
  const JsonArray& inputs = array_at(field(json, "inputs", where), where);
  const auto argument = [&](std::size_t i) -> const JsonValue& {
    if (i >= inputs.size()) fail_at(where, "the region has too few arguments");
    return field(inputs[i], "arg", where);
  };
  Scope inner{.mode = scope.mode, .depth = scope.depth + 1};
  std::size_t next = 0;
  if (target.ends_with("autocast")) {
    Autocast cast{.cache = true, .region = next_region_++};
    const auto constant = [&](std::size_t i) {
      const Arg arg = read_arg(scope, argument(i), where);
      if (!arg.constant()) fail_at(where, "the mode is not a constant");
      return *arg.constant();
    };
    const IValue device = constant(0), dtype = constant(1), enabled = constant(2), cache = constant(3);
    if (!device.isString() || !(dtype.isInt() || dtype.isNone()) || !enabled.isBool() ||
        !(cache.isBool() || cache.isNone()) ||
        (dtype.isInt() && !is_enum_value(EnumKind::Dtype, dtype.toInt()))) {
      fail_at(where, "the autocast region has unknown arguments");
    }
    try {
      cast.device = c10::Device(device.toStringRef()).type();
    } catch (const c10::Error&) {
      fail_at(where, "unknown device " + device.toStringRef());
    }
    cast.dtype = dtype.isNone() ? at::kBFloat16 : static_cast<at::ScalarType>(dtype.toInt());
    cast.enabled = enabled.toBool();
    cast.cache = cache.isNone() || cache.toBool();
    inner.mode.autocast.push_back(cast);
    next = 4;
  } else {
    inner.mode.grad = bool_at(*choice_at(argument(0), where).value, where) ? GradFlag::On : GradFlag::Off;
    next = 1;
  }
  const auto [kind, body] = choice_at(argument(next++), where);
  if (kind != "as_graph") refuse("the region has no graph", target, module, "export the model again");
  inner.graph = &field(*body, "graph", where);
  object_at(*inner.graph, where);
  const JsonArray& formal = array_at(field(*inner.graph, "inputs", where), where);
  if (formal.size() != inputs.size() - next)
    fail_at(where, "the arguments of the region do not match its inputs");
  const auto name_of = [&](const JsonValue& arg) -> std::string {
    const auto [which, value] = choice_at(arg, where);
    if (which == "as_tensor") return string_at(field(*value, "name", where), where);
    if (which == "as_sym_int" || which == "as_sym_float" || which == "as_sym_bool") {
      const auto [variant, name] = choice_at(*value, where);
      return variant == "as_name" ? string_at(*name, where) : "";
    }
    return "";
  };
  for (std::size_t i = 0; i < formal.size(); ++i) {
    const std::string name = name_of(formal[i]);
    if (!name.empty()) bind(inner, name, read_arg(scope, argument(next + i), where), where);
  }
  read_nodes(inner, where + ", region");

  const JsonArray& results = array_at(field(*inner.graph, "outputs", where), where);
  std::vector<const JsonValue*> outputs;
  for (const JsonValue& output : array_at(field(json, "outputs", where), where)) {
    const JsonValue* const tensors = output.object() ? output.object()->find("as_tensors") : nullptr;
    if (tensors != nullptr) {
      for (const JsonValue& item : array_at(*tensors, where)) outputs.push_back(&item);
    } else {
      outputs.push_back(&output);
    }
  }
  if (outputs.size() > results.size())
    fail_at(where, "the region has more outputs than its node has results");
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const JsonObject* const output = outputs[i]->object();
    const JsonValue* const output_name = output != nullptr ? output->find("name") : nullptr;
    const std::string name = output_name != nullptr ? string_at(*output_name, where) : name_of(*outputs[i]);
    if (!name.empty()) bind(scope, name, read_arg(inner, results[i], where), where);
  }
}

}  // namespace penstock::graph
