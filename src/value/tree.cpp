// Flattens and rebuilds value trees.
#include "base/text.h"
#include "value/kind_name.h"

#include <penstock/base/error.h>
#include <penstock/value/tensors_in.h>
#include <penstock/value/tree.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/equal.h>

#include <algorithm>

namespace penstock::value {
namespace {

using c10::IValue;
using Kind = Structure::Kind;

ElementKind element_kind(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return ElementKind::Tensor;
    case c10::TypeKind::IntType:
      return ElementKind::Int;
    case c10::TypeKind::FloatType:
      return ElementKind::Double;
    case c10::TypeKind::BoolType:
      return ElementKind::Bool;
    case c10::TypeKind::StringType:
      return ElementKind::String;
    default:
      return ElementKind::Any;
  }
}

c10::TypePtr element_type(ElementKind kind) {
  switch (kind) {
    case ElementKind::Any:
      return c10::AnyType::get();
    case ElementKind::Tensor:
      return c10::TensorType::get();
    case ElementKind::Int:
      return c10::IntType::get();
    case ElementKind::Double:
      return c10::FloatType::get();
    case ElementKind::Bool:
      return c10::BoolType::get();
    case ElementKind::String:
      return c10::StringType::get();
  }
  return c10::AnyType::get();
}

bool fits(ElementKind kind, const IValue& value) {
  switch (kind) {
    case ElementKind::Any:
      return true;
    case ElementKind::Tensor:
      return value.isTensor();
    case ElementKind::Int:
      return value.isInt();
    case ElementKind::Double:
      return value.isDouble();
    case ElementKind::Bool:
      return value.isBool();
    case ElementKind::String:
      return value.isString();
  }
  return false;
}

c10::TypePtr fitting_type(ElementKind kind, const std::vector<IValue>& items) {
  const bool all_fit =
      std::all_of(items.begin(), items.end(), [&](const IValue& item) { return fits(kind, item); });
  return element_type(all_fit ? kind : ElementKind::Any);
}

DictKey dict_key(const IValue& key) {
  if (key.isString()) return key.toStringRef();
  if (key.isInt()) return key.toInt();
  throw UsageError("a dict in a value tree has a key of type " + kind_name(key), {},
                   "use integers or strings as keys");
}

Structure flatten_into(const IValue& tree, std::vector<IValue>& leaves) {
  Structure structure;
  if (tree.isTuple()) {
    structure.kind = Kind::Tuple;
    for (const IValue& item : tree.toTupleRef().elements()) {
      structure.children.push_back(flatten_into(item, leaves));
    }
  } else if (tree.isList()) {
    structure.kind = Kind::List;
    const c10::List<IValue> list = tree.toList();
    structure.element = element_kind(*list.elementType());
    for (std::size_t i = 0; i < list.size(); ++i)
      structure.children.push_back(flatten_into(list.get(i), leaves));
  } else if (tree.isGenericDict()) {
    structure.kind = Kind::Dict;
    const auto dict = tree.toGenericDict();
    structure.element = element_kind(*dict.valueType());
    for (const auto& entry : dict) {
      structure.keys.push_back(dict_key(entry.key()));
      structure.children.push_back(flatten_into(entry.value(), leaves));
    }
  } else {
    leaves.push_back(tree);
  }
  return structure;
}

IValue rebuild_dict(const Structure& structure, const std::vector<IValue>& items) {
  const bool by_string =
      structure.keys.empty() || std::holds_alternative<std::string>(structure.keys.front());
  const c10::TypePtr key_type =
      by_string ? c10::TypePtr(c10::StringType::get()) : c10::TypePtr(c10::IntType::get());
  c10::impl::GenericDict dict(key_type, fitting_type(structure.element, items));
  for (std::size_t i = 0; i < items.size(); ++i) {
    dict.insert(std::visit([](const auto& key) { return IValue(key); }, structure.keys[i]), items[i]);
  }
  return dict;
}

IValue rebuild(const Structure& structure, std::vector<IValue>::const_iterator& next) {
  if (structure.kind == Kind::Leaf) return *next++;
  std::vector<IValue> items;
  items.reserve(structure.children.size());
  for (const Structure& child : structure.children) items.push_back(rebuild(child, next));
  switch (structure.kind) {
    case Kind::Leaf:
      break;
    case Kind::Tuple:
      return c10::ivalue::Tuple::create(std::move(items));
    case Kind::List: {
      c10::List<IValue> list(fitting_type(structure.element, items));
      list.reserve(items.size());
      for (IValue& item : items) list.push_back(std::move(item));
      return list;
    }
    case Kind::Dict:
      return rebuild_dict(structure, items);
  }
  return {};
}

std::string key_text(const DictKey& key) {
  if (const auto* name = std::get_if<std::string>(&key)) return *name;
  return std::to_string(std::get<std::int64_t>(key));
}

void collect_paths(const Structure& structure, const std::string& here, std::vector<std::string>& paths) {
  if (structure.kind == Kind::Leaf) {
    paths.push_back(here);
    return;
  }
  for (std::size_t i = 0; i < structure.children.size(); ++i) {
    const bool named = structure.kind == Kind::Dict && std::holds_alternative<std::string>(structure.keys[i]);
    const std::string step = structure.kind == Kind::Dict ? key_text(structure.keys[i]) : std::to_string(i);
    collect_paths(structure.children[i], named ? here + "." + step : here + "[" + step + "]", paths);
  }
}

}  // namespace

std::size_t Structure::num_leaves() const {
  if (kind == Kind::Leaf) return 1;
  std::size_t count = 0;
  for (const Structure& child : children) count += child.num_leaves();
  return count;
}

std::string to_string(const Structure& structure) {
  const auto& [kind, element, keys, children] = structure;
  std::vector<std::string> parts;
  parts.reserve(children.size());
  for (std::size_t i = 0; i < children.size(); ++i) {
    parts.push_back((kind == Kind::Dict ? key_text(keys[i]) + ": " : "") + to_string(children[i]));
  }
  const std::string inside = join(parts, ", ");
  switch (kind) {
    case Kind::Leaf:
      return "*";
    case Kind::List:
      return "[" + inside + "]";
    case Kind::Tuple:
      return "(" + inside + (children.size() == 1 ? ",)" : ")");
    case Kind::Dict:
      return "{" + inside + "}";
  }
  return {};
}

std::vector<std::string> Structure::paths(const std::string& root) const {
  std::vector<std::string> result;
  collect_paths(*this, root, result);
  return result;
}

FlatTree flatten(const IValue& tree) {
  FlatTree flat;
  flat.structure = flatten_into(tree, flat.leaves);
  return flat;
}

IValue unflatten(const std::vector<IValue>& leaves, const Structure& structure) {
  if (const std::size_t wanted = structure.num_leaves(); leaves.size() != wanted) {
    throw UsageError(str_cat("a tree ", to_string(structure), " has ", wanted, " leaves, but ", leaves.size(),
                             " were given"));
  }
  auto next = leaves.begin();
  return rebuild(structure, next);
}

IValue map_leaves(const IValue& tree, const std::function<IValue(const IValue&)>& function) {
  FlatTree flat = flatten(tree);
  for (IValue& leaf : flat.leaves) leaf = function(leaf);
  return unflatten(flat.leaves, flat.structure);
}

IValue map_tensors(const IValue& tree, const std::function<at::Tensor(const at::Tensor&)>& function) {
  return map_leaves(tree, [&](const IValue& leaf) -> IValue {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    return function(leaf.toTensor());
  });
}

std::vector<at::Tensor> tensors_of(const IValue& tree) {
  std::vector<at::Tensor> tensors;
  for (const IValue& leaf : flatten(tree).leaves) {
    if (leaf.isTensor() && leaf.toTensor().defined()) tensors.push_back(leaf.toTensor());
  }
  return tensors;
}

bool leaves_equal(const IValue& a, const IValue& b) {
  if (!a.isTensor() || !b.isTensor()) {
    if (a.tagKind() != b.tagKind()) return false;
    return a.is(b) || (!a.isTensor() && a == b);
  }
  const at::Tensor &x = a.toTensor(), &y = b.toTensor();
  if (!x.defined() || !y.defined() || x.is_same(y)) return x.is_same(y);
  return x.scalar_type() == y.scalar_type() && x.device() == y.device() && at::equal(x, y);
}

std::string kind_name(const IValue& value) {
  if (value.isTensor()) return "tensor";
  if (value.isNone()) return "None";
  if (value.isBool()) return "bool";
  if (value.isInt()) return "int";
  if (value.isDouble()) return "double";
  if (value.isString()) return "string";
  if (value.isTuple()) return "tuple";
  if (value.isList()) return "list";
  if (value.isGenericDict()) return "dict";
  return to_lower(value.tagKind());
}

std::vector<IValue> flatten_args(const IValue& args) {
  return flatten(args).leaves;
}

DetachedArgs flatten_args_detach(const IValue& args) {
  FlatTree flat = flatten(args);
  for (IValue& leaf : flat.leaves) {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) continue;
    const at::Tensor& tensor = leaf.toTensor();
    leaf = tensor.detach().set_requires_grad(tensor.requires_grad());
  }
  IValue tree = unflatten(flat.leaves, flat.structure);
  return {std::move(tree), std::move(flat.leaves)};
}

void detail::throw_unknown_result() {
  throw UsageError("the tensors in the result of a module cannot be found", {},
                   "return a tensor, a c10::IValue, or a pair, tuple, vector, map or optional of tensors");
}

}  // namespace penstock::value
