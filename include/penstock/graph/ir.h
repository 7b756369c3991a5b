// The flat ATen graph. Capture and import produce it, `split_graph` divides it into stages, the interpreter
// runs it. Graphs are plain data; transformations are functions that return a new graph.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/value/tree.h>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace penstock::graph {

//! The index of a value in `Graph::values`.
using ValueId = StrongId<struct ValueTag>;

//! Marks a result that nothing reads.
inline constexpr ValueId kUnusedValue{-1};

//! The type of a value.
enum class ValueType : std::uint8_t { Tensor, Int, Float, Bool };

//! A size of a tensor: a number, or a symbolic expression with its value at export time.
struct Dim {
  std::int64_t size = 0;
  std::string expression;  //!< empty if the size is fixed

  friend bool operator==(const Dim&, const Dim&) = default;
};

//! Metadata of a tensor that is known before the graph runs.
struct ValueMeta {
  at::ScalarType dtype = at::kFloat;
  std::vector<Dim> sizes;

  //! Symbolic sizes count with their values at export time.
  std::int64_t numel() const;
  std::size_t nbytes() const;

  friend bool operator==(const ValueMeta&, const ValueMeta&) = default;
};

//! `float32[2, "s0"=3]`
std::string to_string(const ValueMeta& meta);

//! A tensor or scalar that a node produces, or that enters the graph as an input or slot.
struct Value {
  std::string name;
  ValueType type = ValueType::Tensor;
  std::optional<ValueMeta> meta;
  std::string expression;  //!< of a symbolic scalar
  //! Values with the same storage number may share memory; nullopt for scalars.
  std::optional<std::int32_t> storage;
};

//! An argument of a node: a constant, a value, or a list with at least one value.
struct Arg {
  std::variant<c10::IValue, ValueId, std::vector<Arg>> is;

  const c10::IValue* constant() const { return std::get_if<c10::IValue>(&is); }
  const ValueId* value() const { return std::get_if<ValueId>(&is); }
  const std::vector<Arg>* list() const { return std::get_if<std::vector<Arg>>(&is); }
};

//! One return value of an operator: a single value, or the items of a list.
struct Result {
  std::vector<ValueId> ids;
  bool is_list = false;
};

//! Arithmetic on sizes. These operators do not exist in the dispatcher.
enum class ScalarOp : std::uint8_t {
  Add,
  Sub,
  Mul,
  FloorDiv,
  TrueDiv,
  Mod,
  Pow,
  Neg,
  Pos,
  Eq,
  Ne,
  Lt,
  Le,
  Gt,
  Ge,
  And,
  Or,
  Not,
  Max,
  Min,
  Int,
  Float,
  Sqrt,
  Trunc,
  Ite,
  LeftShift,
  RightShift
};

std::string_view to_string(ScalarOp op);
//! Parses a name of `to_string`; nullopt if it is unknown.
std::optional<ScalarOp> try_parse_scalar_op(std::string_view name);

//! Whether a node runs with gradients enabled: as in its caller, always, or never.
enum class GradFlag : std::uint8_t { Inherit, On, Off };

//! An autocast region. `region` distinguishes consecutive regions, because each has its own cache.
struct Autocast {
  c10::DeviceType device = c10::DeviceType::CPU;
  at::ScalarType dtype = at::kBFloat16;
  bool enabled = true;
  bool cache = true;
  int region = 0;

  friend bool operator==(const Autocast&, const Autocast&) = default;
};

//! The grad and autocast modes of a node that differ from the caller's.
struct NodeMode {
  GradFlag grad = GradFlag::Inherit;
  std::vector<Autocast> autocast;  //!< outermost first

  friend bool operator==(const NodeMode&, const NodeMode&) = default;
};

//! One operator call, one computation on sizes, or one split mark.
struct Node {
  enum class Kind : std::uint8_t { Op, Scalar, Split };

  Kind kind = Kind::Op;
  const c10::OperatorHandle* op = nullptr;  //!< for Op; from `find_operator`, which keeps it alive
  ScalarOp scalar = ScalarOp::Add;          //!< for Scalar
  std::vector<Arg> args;                    //!< for Op: one per argument of the schema
  std::vector<Result> results;              //!< for Op: one per return of the schema
  std::string module;                       //!< path of the module that ran the node; empty for the root
  //! The call number of each module on the path, from 0; empty if every call is the first.
  std::vector<int> calls{};
  NodeMode mode;

  std::string name() const;  //!< `aten::add.Tensor`, `scalar::mul`, `pipe_split`
};

//! A tensor that belongs to the graph instead of being passed by the caller.
struct Slot {
  enum class Kind : std::uint8_t { Parameter, Buffer, Constant };

  Kind kind = Kind::Parameter;
  ValueId value;
  std::vector<std::string> names;  //!< fully qualified; several if modules share the tensor
  bool requires_grad = false;
  bool persistent = true;  //!< false for buffers that are not part of the state_dict
};

//! An input of the graph: a leaf of its arguments. A leaf that no node reads still has a value.
struct GraphInput {
  ValueId value;
  std::optional<c10::IValue> constant;  //!< the required value, if export turned the leaf into a constant
};

//! After all nodes have run, `from` is copied into `target`, the value of a slot or input.
struct Mutation {
  ValueId target;
  ValueId from;
};

//! The allowed range of a symbol in size expressions.
struct SymbolRange {
  std::string symbol;
  std::optional<std::int64_t> min, max;
};

//! A model as a list of nodes in execution order, with its values, inputs, outputs and slots.
struct Graph {
  std::vector<Value> values;
  std::vector<Slot> slots;
  std::vector<GraphInput> inputs;  //!< leaves of the tuple (args, kwargs)
  value::Structure input_structure;
  std::vector<Node> nodes;
  std::vector<Arg> outputs;  //!< leaves, never lists
  value::Structure output_structure;
  std::vector<Mutation> mutations;
  std::vector<SymbolRange> symbols;

  const Value& value(ValueId id) const { return values[id.index()]; }
  Value& value(ValueId id) { return values[id.index()]; }
  //! Appends a value and returns its id.
  ValueId add_value(Value value);

  //! The names of the input leaves: `args[0]` or a keyword.
  std::vector<std::string> input_paths() const;
  //! The names of the output leaves: `output`, `output.0`, `output.logits`, `output.hidden.1`.
  std::vector<std::string> output_paths() const;

  //! Returns the slot of this value; null if the value is not that of a slot.
  const Slot* find_slot(ValueId value) const;
};

//! Returns the operator with this name (`aten::add.Tensor`), or null. The handle lives until process exit.
const c10::OperatorHandle* find_operator(const std::string& name);

//! Calls `visit(id)` for every value that the argument reads.
template <class Visit>
void for_each_value(const Arg& arg, const Visit& visit) {
  if (const ValueId* id = arg.value()) {
    visit(*id);
  } else if (const std::vector<Arg>* items = arg.list()) {
    for (const Arg& item : *items) for_each_value(item, visit);
  }
}

//! Calls `visit(id)` for every value that the node reads.
template <class Visit>
void for_each_read(const Node& node, const Visit& visit) {
  for (const Arg& arg : node.args) for_each_value(arg, visit);
}

//! Calls `visit(id)` for every result of the node that is used.
template <class Visit>
void for_each_result(const Node& node, const Visit& visit) {
  for (const Result& result : node.results) {
    for (const ValueId id : result.ids) {
      if (id != kUnusedValue) visit(id);
    }
  }
}

}  // namespace penstock::graph
