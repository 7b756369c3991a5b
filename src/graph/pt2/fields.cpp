// Reads dtypes, sizes, structures and module paths from the JSON of an archive.
#include "graph/pt2/fields.h"

#include "base/text.h"
#include "graph/ir/module_path.h"

#include <penstock/base/error.h>

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <string_view>

namespace penstock::graph {
namespace {

constexpr int kMaxTreeDepth = 64;

//! Returns the keys in a node's context if there is one per child. Dicts store a list of keys, dataclasses a
//! list whose first item is such a list.
std::optional<std::vector<value::DictKey>> keys_in(const JsonValue& context, std::size_t children) {
  const JsonArray* const items = context.array();
  if (items == nullptr) return std::nullopt;
  std::vector<value::DictKey> keys;
  for (const JsonValue& key : *items) {
    if (key.string() != nullptr) {
      keys.emplace_back(*key.string());
    } else if (key.integer()) {
      keys.emplace_back(*key.integer());
    } else {
      break;
    }
  }
  if (keys.size() == children && keys.size() == items->size()) return keys;
  for (const JsonValue& item : *items) {
    if (auto inner = keys_in(item, children)) return inner;
  }
  return std::nullopt;
}

std::optional<std::vector<value::DictKey>> fields_of(const JsonValue& context, const NamedTuples& named,
                                                     std::size_t children) {
  // The context of a named tuple is its class name; the archive lists the fields of each class.
  const JsonValue* name = &context;
  if (context.object() != nullptr) name = context.object()->find("class_name");
  if (name == nullptr || name->string() == nullptr) return std::nullopt;
  const auto it = named.find(*name->string());
  if (it == named.end() || it->second.size() != children) return std::nullopt;
  return std::vector<value::DictKey>(it->second.begin(), it->second.end());
}

value::Structure structure_at(const JsonValue& spec, const NamedTuples& named, const std::string& where,
                              int depth) {
  if (depth > kMaxTreeDepth) fail_at(where, "the tree is nested too deeply");
  value::Structure structure;
  const JsonValue* type = optional_field(spec, "type", where);
  if (!type) return structure;
  const std::string name = string_at(*type, where);
  for (const JsonValue& child : array_at(field(spec, "children_spec", where), where)) {
    structure.children.push_back(structure_at(child, named, where, depth + 1));
  }
  JsonValue context;
  if (const JsonValue* text = optional_field(spec, "context", where)) {
    context = *text;
    if (text->string() != nullptr) {
      try {
        context = parse_json(*text->string(), where);
      } catch (const ParseError&) {  // not JSON: a plain name
      }
    }
  }
  structure.kind = value::Structure::Kind::Tuple;
  if (name == "builtins.tuple") return structure;
  if (name == "builtins.list" || name.ends_with("immutable_list") || name == "collections.deque") {
    structure.kind = value::Structure::Kind::List;
    return structure;
  }
  auto keys = keys_in(context, structure.children.size());
  if (!keys) keys = fields_of(context, named, structure.children.size());
  if (!keys && name.ends_with("dict")) fail_at(where, "dict keys must be integers or strings");
  if (keys) {
    structure.kind = value::Structure::Kind::Dict;
    structure.keys = std::move(*keys);
  }
  return structure;
}

}  // namespace

at::ScalarType pt2_dtype(const JsonValue& value, const std::string& where) {
  switch (integer_at(value, where)) {
    case 1:
      return at::kByte;
    case 2:
      return at::kChar;
    case 3:
      return at::kShort;
    case 4:
      return at::kInt;
    case 5:
      return at::kLong;
    case 6:
      return at::kHalf;
    case 7:
      return at::kFloat;
    case 8:
      return at::kDouble;
    case 9:
      return at::kComplexHalf;
    case 10:
      return at::kComplexFloat;
    case 11:
      return at::kComplexDouble;
    case 12:
      return at::kBool;
    case 13:
      return at::kBFloat16;
    case 28:
      return at::ScalarType::UInt16;
    case 29:
      return at::ScalarType::Float8_e4m3fn;
    case 30:
      return at::ScalarType::Float8_e5m2;
    case 31:
      return at::ScalarType::Float8_e4m3fnuz;
    case 32:
      return at::ScalarType::Float8_e5m2fnuz;
    case 33:
      return at::ScalarType::Float8_e8m0fnu;
    case 34:
      return at::ScalarType::UInt32;
    case 35:
      return at::ScalarType::UInt64;
    default:
      fail_at(where, str_cat("unknown dtype ", integer_at(value, where)));
  }
}

std::int64_t pt2_layout(const JsonValue& value, const std::string& where) {
  switch (integer_at(value, where)) {
    case 1:
      return static_cast<std::int64_t>(c10::Layout::Sparse);
    case 2:
      return static_cast<std::int64_t>(c10::Layout::SparseCsr);
    case 3:
      return static_cast<std::int64_t>(c10::Layout::SparseCsc);
    case 4:
      return static_cast<std::int64_t>(c10::Layout::SparseBsr);
    case 5:
      return static_cast<std::int64_t>(c10::Layout::SparseBsc);
    case 6:
      return static_cast<std::int64_t>(c10::Layout::Mkldnn);
    case 7:
      return static_cast<std::int64_t>(c10::Layout::Strided);
    default:
      fail_at(where, str_cat("unknown layout ", integer_at(value, where)));
  }
}

std::int64_t pt2_memory_format(const JsonValue& value, const std::string& where) {
  switch (integer_at(value, where)) {
    case 1:
      return static_cast<std::int64_t>(c10::MemoryFormat::Contiguous);
    case 2:
      return static_cast<std::int64_t>(c10::MemoryFormat::ChannelsLast);
    case 3:
      return static_cast<std::int64_t>(c10::MemoryFormat::ChannelsLast3d);
    case 4:
      return static_cast<std::int64_t>(c10::MemoryFormat::Preserve);
    default:
      fail_at(where, str_cat("unknown memory format ", integer_at(value, where)));
  }
}

c10::Device pt2_device(const JsonValue& value, const std::string& where) {
  std::string name = string_at(field(value, "type", where), where);
  if (const JsonValue* index = optional_field(value, "index", where)) {
    name += str_cat(":", integer_at(*index, where));
  }
  try {
    return c10::Device(name);
  } catch (const c10::Error&) {
    fail_at(where, "unknown device " + name);
  }
}

std::string short_expression(const std::string& expression) {
  constexpr std::string_view symbol = "Symbol('", integer = "Integer(";
  std::string result;
  for (std::size_t at = 0; at < expression.size();) {
    const std::string_view rest = std::string_view(expression).substr(at);
    const std::size_t close = rest.find(')');
    if (rest.starts_with(symbol) && close != std::string_view::npos) {
      const std::string_view inside = rest.substr(symbol.size(), close - symbol.size());
      result += inside.substr(0, inside.find('\''));
      at += close + 1;
    } else if (rest.starts_with(integer) && close != std::string_view::npos) {
      result += rest.substr(integer.size(), close - integer.size());
      at += close + 1;
    } else {
      result += expression[at++];
    }
  }
  return result;
}

Dim pt2_dim(const JsonValue& value, const std::string& where) {
  const JsonChoice choice = choice_at(value, where);
  if (choice.name == "as_int") return {.size = integer_at(*choice.value, where)};
  if (choice.name != "as_expr") fail_at(where, "unknown size " + choice.name);
  Dim dim{.expression = string_at(field(*choice.value, "expr_str", where), where)};
  if (dim.expression.size() > 2000) fail_at(where, "the size expression is too long");
  dim.expression = short_expression(dim.expression);
  if (const JsonValue* hint = optional_field(*choice.value, "hint", where)) {
    const JsonChoice number = choice_at(*hint, where);
    if (number.name == "as_int") dim.size = integer_at(*number.value, where);
  }
  return dim;
}

ValueMeta pt2_meta(const JsonValue& value, const std::string& where) {
  ValueMeta meta{.dtype = pt2_dtype(field(value, "dtype", where), where)};
  for (const JsonValue& size : array_at(field(value, "sizes", where), where)) {
    meta.sizes.push_back(pt2_dim(size, where));
    if (meta.sizes.back().size < 0) fail_at(where, "a tensor has a negative size");
  }
  return meta;
}

value::Structure pt2_structure(const std::string& text, const NamedTuples& named, const std::string& where) {
  const JsonValue spec = parse_json(text, where);
  const JsonArray* const parts = spec.array();
  if (parts == nullptr || parts->size() != 2 || (*parts)[0].number() != 1)
    fail_at(where, "unknown tree specification");
  return structure_at((*parts)[1], named, where, 0);
}

void pt2_module(const JsonValue& json, const std::string& where, Node& node) {
  const JsonValue* metadata = optional_field(json, "metadata", where);
  const JsonValue* stack = metadata ? optional_field(*metadata, "nn_module_stack", where) : nullptr;
  if (!stack) return;
  // Format: `key,path,class;key,path,class`, outermost first. The key of a second call ends with `@1`.
  const std::string text = string_at(*stack, where);
  std::vector<std::pair<std::string, int>> modules;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(';', begin), text.size());
    const std::size_t comma = text.find(',', begin), second = comma < end ? text.find(',', comma + 1) : end;
    if (second >= end) return;
    const std::string path = text.substr(comma + 1, second - comma - 1);
    const bool plain = path.find_first_of(" \t\n(){}[]\",=:%@") == std::string::npos;
    const bool known = plain && !path.starts_with("_empty_nn_module_stack");
    modules.emplace_back(known ? path : "",
                         parse_module_call(text.substr(begin, comma - begin)).call.value_or(0));
    begin = end + 1;
  }
  if (modules.empty()) return;
  node.module = modules.back().first;
  for (const auto& [path, call] : modules) set_call(node, path, call);
}

}  // namespace penstock::graph
