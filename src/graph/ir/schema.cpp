// Checks nodes against schemas. Lists the aliasing and writes that schemas do not declare.
#include "graph/ir/schema.h"

#include "base/text.h"
#include "graph/ir/enums.h"
#include "graph/passes/passes.h"

#include <penstock/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <array>

namespace penstock::graph {
namespace {

using c10::IValue;
using c10::TypeKind;

//! Operators that may return their argument, although the schema declares no alias.
bool may_return_argument(std::string_view name) {
  static constexpr std::array names = {"aten::dropout",           "aten::feature_dropout",
                                       "aten::alpha_dropout",     "aten::feature_alpha_dropout",
                                       "aten::broadcast_tensors", "aten::meshgrid",
                                       "aten::atleast_1d",        "aten::atleast_2d",
                                       "aten::atleast_3d",        "aten::type_as",
                                       "aten::conj_physical",     "aten::pad",
                                       "aten::constant_pad_nd",   "aten::real",
                                       "aten::resolve_conj",      "aten::resolve_neg",
                                       "aten::contiguous",        "aten::einsum",
                                       "aten::expand_as",         "aten::block_diag"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

//! These composite operators write their running statistics, although the schema does not declare it.
std::array<int, 2> statistics_arguments(const Node& node) {
  const std::string& name = node.op->operator_name().name;
  const bool batch = name == "aten::batch_norm", instance = name == "aten::instance_norm";
  if (!batch && !instance) return {-1, -1};
  const IValue* training = node.args[5].constant();
  return training && training->isBool() && !training->toBool() ? std::array{-1, -1} : std::array{3, 4};
}

bool value_fits(ValueType value, const c10::Type& type) {
  const c10::Type& plain = without_optional(type);
  switch (plain.kind()) {
    case TypeKind::TensorType:
      return true;  // scalars are wrapped into tensors
    case TypeKind::AnyType:
    case TypeKind::NumberType:
      return value != ValueType::Tensor;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return value == ValueType::Int || value == ValueType::Bool;
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return value == ValueType::Float || value == ValueType::Int;
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
      return value == ValueType::Bool;
    default:
      return false;
  }
}

bool arg_fits(const Graph& graph, const Arg& arg, const c10::Type& type) {
  if (const IValue* constant = arg.constant()) return constant_fits(*constant, type);
  if (const ValueId* id = arg.value()) return value_fits(graph.value(*id).type, type);
  const c10::Type& plain = without_optional(type);
  if (plain.kind() != TypeKind::ListType) return false;
  const c10::Type& element = *plain.containedType(0);
  return std::all_of(arg.list()->begin(), arg.list()->end(),
                     [&](const Arg& item) { return !item.list() && arg_fits(graph, item, element); });
}

}  // namespace

const c10::Type& without_optional(const c10::Type& type) {
  return type.kind() == TypeKind::OptionalType ? *type.containedType(0) : type;
}

bool is_tensor_type(const c10::Type& type) {
  return without_optional(type).kind() == TypeKind::TensorType;
}

bool constant_fits(const IValue& constant, const c10::Type& type) {
  if (type.kind() == TypeKind::OptionalType)
    return constant.isNone() || constant_fits(constant, *type.containedType(0));
  switch (type.kind()) {
    case TypeKind::TensorType:
      return constant.isTensor();
    case TypeKind::NumberType:
      return constant.isInt() || constant.isDouble() || constant.isBool() || constant.isComplexDouble();
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return constant.isInt();
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return constant.isDouble();
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
      return constant.isBool();
    case TypeKind::StringType:
      return constant.isString();
    case TypeKind::DeviceObjType:
      return constant.isDevice();
    case TypeKind::CapsuleType:
      return constant.isCapsule();
    case TypeKind::GeneratorType:
      return constant.isNone();
    case TypeKind::ComplexType:
      return constant.isComplexDouble();
    case TypeKind::ListType: {
      if (!constant.isList()) return false;
      const auto items = constant.toListRef();
      return std::all_of(items.begin(), items.end(),
                         [&](const IValue& item) { return constant_fits(item, *type.containedType(0)); });
    }
    default:
      return false;
  }
}

IValue typed_list(const std::vector<IValue>& items, const c10::Type& list) {
  c10::impl::GenericList result(without_optional(list).containedType(0));
  result.reserve(items.size());
  for (const IValue& item : items) result.push_back(item);
  return result;
}

std::optional<IValue> fitted(const IValue& constant, const c10::Type& type) {
  const c10::Type& plain = without_optional(type);
  if (constant.isList() && plain.kind() == TypeKind::ListType) {
    std::vector<IValue> items;
    for (const IValue& item : constant.toListRef()) {
      auto fit = fitted(item, *plain.containedType(0));
      if (!fit) return std::nullopt;
      items.push_back(std::move(*fit));
    }
    return typed_list(items, plain);
  }
  if (constant_fits(constant, type)) return constant;
  const bool number =
      constant.isInt() || constant.isDouble() || constant.isBool() || constant.isComplexDouble();
  if (number && plain.kind() == TypeKind::TensorType) return wrapped_number(constant);
  if (constant.isInt() && plain.kind() == TypeKind::FloatType)
    return IValue(static_cast<double>(constant.toInt()));
  if (number && plain.kind() == TypeKind::ListType && !constant.isComplexDouble()) {
    // `int[2] stride` also accepts a single number.
    const auto item = fitted(constant, *plain.containedType(0));
    if (item && !item->isTensor()) return typed_list({*item}, plain);
  }
  if (constant.isBool() && plain.kind() == TypeKind::IntType)
    return IValue(static_cast<std::int64_t>(constant.toBool()));
  return std::nullopt;
}

IValue wrapped_number(const IValue& number) {
  at::Tensor tensor =
      at::scalar_tensor(number.toScalar(), at::device(at::kCPU).dtype(number.toScalar().type()));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

void check_arguments(const Graph& graph, const Node& node) {
  const c10::FunctionSchema& schema = node.op->schema();
  const auto fail = [&](const std::string& what) {
    throw UsageError(what, {.op = node.name() + (node.module.empty() ? "" : " in module " + node.module)});
  };
  if (node.args.size() != schema.arguments().size() || node.results.size() != schema.returns().size()) {
    fail(str_cat("the node has ", node.args.size(), " arguments and ", node.results.size(),
                 " results, but its operator expects ", schema.arguments().size(), " and ",
                 schema.returns().size()));
  }
  for (std::size_t i = 0; i < node.args.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!arg_fits(graph, node.args[i], *argument.type())) {
      fail("argument " + argument.name() + " is not of type " + argument.type()->str());
    }
    const IValue* constant = node.args[i].constant();
    if (constant && constant->isInt() && !is_enum_value(enum_kind(argument), constant->toInt()))
      fail("argument " + argument.name() + " is not a valid " + argument.real_type()->str());
  }
  for (std::size_t i = 0; i < node.results.size(); ++i) {
    const bool list = schema.returns()[i].type()->kind() == TypeKind::ListType;
    if (node.results[i].is_list != list || (!list && node.results[i].ids.size() != 1)) {
      fail(str_cat("result ", i, " is not of type ", schema.returns()[i].type()->str()));
    }
  }
}

std::vector<ValueId> written_values(const Node& node) {
  std::vector<ValueId> written;
  if (node.kind != Node::Kind::Op) return written;
  const auto& arguments = node.op->schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias && alias->isWrite()) for_each_value(node.args[i], [&](ValueId id) { written.push_back(id); });
  }
  for (const int i : statistics_arguments(node)) {
    if (i >= 0)
      for_each_value(node.args[static_cast<std::size_t>(i)], [&](ValueId id) { written.push_back(id); });
  }
  return written;
}

bool has_side_effects(const Node& node) {
  if (node.kind == Node::Kind::Split) return true;
  if (node.kind == Node::Kind::Scalar) return false;
  if (node.results.empty() || node.op->hasTag(at::Tag::nondeterministic_seeded)) return true;
  return !written_values(node).empty();
}

void assign_storage(Graph& graph) {
  std::int32_t next = 0;
  const auto fresh = [&](ValueId id) {
    Value& value = graph.value(id);
    value.storage = value.type == ValueType::Tensor ? std::optional(next++) : std::nullopt;
  };
  for (const Slot& slot : graph.slots) fresh(slot.value);
  for (const GraphInput& input : graph.inputs) fresh(input.value);
  // Merge storages: a list result may contain views of several arguments.
  std::vector<std::int32_t> parent;
  const auto root = [&](std::int32_t id) {
    parent.resize(static_cast<std::size_t>(next), -1);
    while (parent[static_cast<std::size_t>(id)] >= 0) id = parent[static_cast<std::size_t>(id)];
    return id;
  };
  for (const Node& node : graph.nodes) {
    for_each_result(node, fresh);
    if (node.kind != Node::Kind::Op) continue;
    const auto& schema = node.op->schema();
    const bool any = may_return_argument(node.op->operator_name().name);
    const auto same = [&](ValueId a, ValueId b) {
      if (!graph.value(a).storage || !graph.value(b).storage) return;
      const std::int32_t x = root(*graph.value(a).storage), y = root(*graph.value(b).storage);
      if (x != y) parent[static_cast<std::size_t>(std::max(x, y))] = std::min(x, y);
    };
    for (std::size_t r = 0; r < node.results.size(); ++r) {
      const c10::AliasInfo* out = schema.returns()[r].alias_info();
      for (std::size_t a = 0; a < node.args.size(); ++a) {
        const c10::AliasInfo* in = schema.arguments()[a].alias_info();
        if (!any && !(out && in)) continue;
        bool meet = any;
        if (!any) {
          for (const c10::Symbol& set : in->beforeSets()) {
            meet = meet || out->beforeSets().contains(set) || !out->containedTypes().empty();
          }
          meet = meet || in->isWildcardBefore() || out->isWildcardBefore() || !in->containedTypes().empty();
        }
        if (!meet) continue;
        for_each_value(node.args[a], [&](ValueId from) {
          for (const ValueId to : node.results[r].ids) {
            if (to != kUnusedValue) same(to, from);
          }
        });
      }
    }
  }
  for (Value& value : graph.values) {
    if (value.storage) value.storage = root(*value.storage);
  }
}

}  // namespace penstock::graph
