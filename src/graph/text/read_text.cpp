// Parses graph text; docs/graph.md describes the format.
#include "graph/ir/enums.h"
#include "graph/ir/module_path.h"
#include "graph/ir/schema.h"
#include "graph/passes/passes.h"
#include "graph/text/lexer.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_text.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <map>

namespace penstock::graph {
namespace {

using c10::IValue;
using Kind = value::Structure::Kind;

class GraphReader {
 public:
  explicit GraphReader(std::string_view text) : in_(text) {}

  Graph read() {
    in_.expect("graph");
    in_.expect("{");
    in_.expect("inputs");
    graph_.input_structure = read_tree([&] { read_input(); });
    while (!in_.accept("return")) read_line();
    graph_.output_structure = read_tree([&] { graph_.outputs.push_back(read_arg(nullptr, EnumKind::None)); });
    in_.expect("}");
    in_.expect_end();
    try {
      check_graph(graph_);
    } catch (const UsageError& error) {
      in_.fail(error.message());
    }
    assign_storage(graph_);
    return std::move(graph_);
  }

 private:
  void read_line() {
    static const std::map<std::string, Slot> slots = {
        {"param", {.kind = Slot::Kind::Parameter, .requires_grad = true}},
        {"frozen", {.kind = Slot::Kind::Parameter}},
        {"buffer", {.kind = Slot::Kind::Buffer}},
        {"volatile", {.kind = Slot::Kind::Buffer, .persistent = false}},
        {"const", {.kind = Slot::Kind::Constant}}};
    if (const auto it = slots.find(std::string(in_.peek())); it != slots.end()) {
      in_.take();
      Slot slot = it->second;
      slot.value = read_defined();
      in_.expect("=");
      do slot.names.push_back(in_.string());
      while (in_.accept(","));
      graph_.slots.push_back(std::move(slot));
    } else if (in_.accept("symbol")) {
      SymbolRange range{.symbol = in_.string()};
      in_.expect("from");
      if (!in_.accept("None")) range.min = in_.integer();
      in_.expect("to");
      if (!in_.accept("None")) range.max = in_.integer();
      graph_.symbols.push_back(std::move(range));
    } else if (in_.accept("write")) {
      Mutation mutation;
      mutation.target = read_value();
      in_.expect("<-");
      mutation.from = read_value();
      graph_.mutations.push_back(mutation);
    } else {
      read_node();
    }
  }

  void read_node() {
    Node node;
    if (in_.accept("pipe_split")) {
      node.kind = Node::Kind::Split;
    } else {
      if (in_.peek() == "[" || in_.peek() == "_" || in_.peek().starts_with("%")) {
        do node.results.push_back(read_result());
        while (in_.accept(","));
        in_.expect("=");
      }
      const std::string name(in_.take());
      if (name.starts_with("scalar::")) {
        const auto scalar = try_parse_scalar_op(std::string_view(name).substr(8));
        if (!scalar) in_.fail("unknown scalar operator " + name);
        node.kind = Node::Kind::Scalar;
        node.scalar = *scalar;
      } else {
        node.op = find_operator(name);
        if (!node.op) in_.fail("unknown operator " + name);
      }
      read_arguments(node);
    }
    if (in_.accept("@")) read_module_text(in_.take(), node);
    read_mode(node.mode);
    graph_.nodes.push_back(std::move(node));
  }

  void read_arguments(Node& node) {
    in_.expect("(");
    while (!in_.accept(")")) {
      if (!node.args.empty()) in_.expect(",");
      const c10::Argument* argument = nullptr;
      if (node.op) {
        const auto& arguments = node.op->schema().arguments();
        if (node.args.size() >= arguments.size()) in_.fail("too many arguments");
        argument = &arguments[node.args.size()];
      }
      node.args.push_back(read_arg(argument ? argument->type().get() : nullptr,
                                   argument ? enum_kind(*argument) : EnumKind::None));
    }
  }

  void read_mode(NodeMode& mode) {
    for (;;) {
      if (in_.accept("grad")) {
        mode.grad = GradFlag::On;
      } else if (in_.accept("no_grad")) {
        mode.grad = GradFlag::Off;
      } else if (in_.accept("autocast")) {
        Autocast cast;
        in_.expect("(");
        try {
          cast.device = c10::Device(std::string(in_.take())).type();
        } catch (const c10::Error&) {
          in_.fail("unknown device");
        }
        in_.expect(",");
        const auto dtype = try_parse_dtype(in_.take());
        if (!dtype) in_.fail("unknown dtype");
        cast.dtype = *dtype;
        in_.expect(",");
        cast.enabled = in_.take() == "True";
        in_.expect(",");
        cast.cache = in_.take() == "True";
        in_.expect(",");
        cast.region = static_cast<int>(in_.integer());
        in_.expect(")");
        mode.autocast.push_back(cast);
      } else {
        return;
      }
    }
  }

  Result read_result() {
    Result result;
    result.is_list = in_.accept("[");
    if (!result.is_list) {
      result.ids.push_back(read_defined());
    } else if (!in_.accept("]")) {
      do result.ids.push_back(read_defined());
      while (in_.accept(","));
      in_.expect("]");
    }
    return result;
  }

  //! Reads the definition of a new value, `%name [: type]`, or `_`.
  ValueId read_defined() {
    if (in_.accept("_")) return kUnusedValue;
    Value value;
    value.name = in_.value_name();
    if (ids_.contains(value.name)) in_.fail("%" + value.name + " is defined twice");
    if (in_.accept(":")) read_type(value);
    const ValueId id = graph_.add_value(value);
    ids_[value.name] = id;
    return id;
  }

  void read_type(Value& value) {
    const std::string name(in_.take());
    if (name == "int") {
      value.type = ValueType::Int;
      if (in_.peek().starts_with("\"")) value.expression = in_.string();
    } else if (name == "float") {
      value.type = ValueType::Float;
    } else if (name == "bool" && in_.peek() != "[") {
      value.type = ValueType::Bool;
    } else if (name != "tensor") {
      const auto dtype = try_parse_dtype(name);
      if (!dtype) in_.fail("unknown type " + name);
      value.meta = ValueMeta{.dtype = *dtype};
      in_.expect("[");
      while (!in_.accept("]")) {
        if (!value.meta->sizes.empty()) in_.expect(",");
        Dim dim;
        if (in_.peek().starts_with("\"")) {
          dim.expression = in_.string();
          in_.expect("=");
        }
        dim.size = in_.integer();
        value.meta->sizes.push_back(std::move(dim));
      }
    }
  }

  ValueId read_value() {
    const std::string_view token = in_.peek();
    const auto it = ids_.find(std::string(token.substr(token.starts_with("%") ? 1 : 0)));
    if (token.starts_with("%") && it == ids_.end())
      in_.fail(std::string(token) + " is read before it is defined");
    in_.value_name();
    return it->second;
  }

  void read_input() {
    GraphInput input;
    input.value = read_defined();
    if (input.value == kUnusedValue) in_.fail("an input needs a name");
    if (in_.accept("=")) input.constant = read_constant(EnumKind::None);
    graph_.inputs.push_back(std::move(input));
  }

  Arg read_arg(const c10::Type* type, EnumKind kind) {
    if (in_.peek().starts_with("%")) return {read_value()};
    if (in_.accept("[")) {
      const c10::Type* element = nullptr;
      if (type && without_optional(*type).kind() == c10::TypeKind::ListType) {
        element = without_optional(*type).containedType(0).get();
      }
      std::vector<Arg> items;
      bool all_constant = true;
      while (!in_.accept("]")) {
        if (!items.empty()) in_.expect(",");
        items.push_back(read_arg(element, kind));
        all_constant = all_constant && items.back().constant();
      }
      if (!all_constant) return {std::move(items)};
      if (!element) in_.fail("unexpected list");
      std::vector<IValue> constants;
      for (const Arg& item : items) constants.push_back(*item.constant());
      return {typed_list(constants, *type)};
    }
    const IValue constant = read_constant(kind);
    if (!type) return {constant};
    const auto fit = fitted(constant, *type);
    if (!fit) in_.fail("the constant is not of type " + type->str());
    return {*fit};
  }

  IValue read_constant(EnumKind kind) {
    if (in_.peek().starts_with("\"")) return in_.string();
    if (in_.accept("None")) return {};
    if (in_.accept("True")) return true;
    if (in_.accept("False")) return false;
    if (in_.accept("device")) {
      in_.expect("(");
      const std::string name = in_.string();
      in_.expect(")");
      try {
        return c10::Device(name);
      } catch (const c10::Error&) {
        in_.fail("unknown device " + name);
      }
    }
    if (in_.accept("complex")) {
      in_.expect("(");
      const double real = in_.real();
      in_.expect(",");
      const double imaginary = in_.real();
      in_.expect(")");
      return c10::complex<double>(real, imaginary);
    }
    if (const auto number = try_parse_enum(kind, in_.peek())) {
      in_.take();
      return *number;
    }
    return in_.number();
  }

  template <class Leaf>
  value::Structure read_tree(const Leaf& leaf) {
    if (++depth_ > 64) in_.fail("the tree is nested too deeply");
    value::Structure structure;
    static const std::map<std::string, value::ElementKind> prefixes = {
        {"Tensor", value::ElementKind::Tensor},
        {"Int", value::ElementKind::Int},
        {"Double", value::ElementKind::Double},
        {"Bool", value::ElementKind::Bool},
        {"String", value::ElementKind::String}};
    const auto prefix = prefixes.find(std::string(in_.peek()));
    if (prefix != prefixes.end()) {
      in_.take();
      structure.element = prefix->second;
    }
    if (in_.accept("(")) {
      structure.kind = Kind::Tuple;
      read_items(structure, ")", leaf);
    } else if (in_.accept("[")) {
      structure.kind = Kind::List;
      read_items(structure, "]", leaf);
    } else if (in_.accept("{")) {
      structure.kind = Kind::Dict;
      read_items(structure, "}", leaf);
    } else {
      leaf();
    }
    --depth_;
    return structure;
  }

  template <class Leaf>
  void read_items(value::Structure& structure, std::string_view close, const Leaf& leaf) {
    while (!in_.accept(close)) {
      if (structure.kind == Kind::Dict) {
        if (in_.peek().starts_with("\"")) {
          structure.keys.emplace_back(in_.string());
        } else {
          structure.keys.emplace_back(in_.integer());
        }
        in_.expect(":");
      }
      structure.children.push_back(read_tree(leaf));
      if (!in_.accept(",") && in_.peek() != close) in_.fail("expected , or " + std::string(close));
    }
  }

  Lexer in_;
  Graph graph_;
  std::map<std::string, ValueId> ids_;
  int depth_ = 0;
};

}  // namespace

Graph parse_graph(std::string_view text) {
  return GraphReader(text).read();
}

}  // namespace penstock::graph
