// The source of each argument is resolved at compile time. A run only pushes arguments, calls the boxed
// operator and stores its results.
#include "graph/run/interpreter.h"

#include "base/text.h"
#include "graph/ir/enums.h"
#include "graph/ir/modes.h"
#include "graph/ir/scalars.h"
#include "graph/ir/schema.h"
#include "graph/passes/passes.h"

#include <penstock/graph/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/copy.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <type_traits>

namespace penstock::graph {
namespace {

using c10::IValue;
using torch::jit::Stack;

//! The source of an argument. Move: this is the last read of the value in the frame.
enum class From : std::uint8_t { Constant, Copy, Move, Slot, Wrap, List };

struct Operand {
  From from = From::Constant;
  std::uint32_t index = 0;
};

struct ListRecipe {
  c10::TypePtr element;
  std::vector<Operand> items;
};

constexpr std::uint32_t kNoIndex = 0xffffffff;

//! The destination of a return: one index of the frame, or one per list item.
struct Destination {
  bool is_list = false;
  std::uint32_t index = kNoIndex;  //!< frame index; for lists, first index in `list_indices`
  std::uint32_t count = 0;
};

//! The most common signatures are called unboxed: without a stack, on references into the frame.
using UnaryFunction = at::Tensor(const at::Tensor&);
using BinaryFunction = at::Tensor(const at::Tensor&, const at::Tensor&);
using BinaryScalarFunction = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Scalar&);
using AffineFunction = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);

enum class Call : std::uint8_t { Boxed, Scalar, Unary, Binary, BinaryScalar, Affine };

struct Step {
  const c10::OperatorHandle* op = nullptr;
  Call call = Call::Boxed;
  ScalarOp scalar = ScalarOp::Add;
  std::uint32_t typed = 0;  //!< index among the handles of that signature
  std::uint32_t first_operand = 0, end_operand = 0;
  std::uint32_t first_result = 0, end_result = 0;
  std::uint32_t mode = 0;
  std::uint32_t node = 0;
};

}  // namespace

struct Interpreter::Program {
  std::vector<Step> steps;
  std::vector<Operand> operands;
  std::vector<Destination> destinations;
  std::vector<std::uint32_t> list_indices;
  std::vector<ListRecipe> lists;
  std::vector<IValue> constants;
  std::vector<NodeMode> modes{NodeMode{}};
  std::vector<c10::TypedOperatorHandle<UnaryFunction>> unary;
  std::vector<c10::TypedOperatorHandle<BinaryFunction>> binary;
  std::vector<c10::TypedOperatorHandle<BinaryScalarFunction>> binary_scalar;
  std::vector<c10::TypedOperatorHandle<AffineFunction>> affine;
  std::vector<std::string> names;  //!< of the nodes, for errors
  std::vector<Operand> outputs;
  std::vector<std::pair<Operand, Operand>> mutations;  //!< (target, from)
  std::size_t num_inputs = 0, num_slots = 0, frame_size = 0;

  void push(Stack& stack, const Operand& operand, std::vector<IValue>& frame,
            std::span<const at::Tensor> slots) const;
  IValue list(const ListRecipe& recipe, std::vector<IValue>& frame, std::span<const at::Tensor> slots) const;
  void store(Stack& stack, const Step& step, std::vector<IValue>& frame) const;
  const at::Tensor& tensor(const Operand& operand, const std::vector<IValue>& frame,
                           std::span<const at::Tensor> slots) const;
  void call_typed(const Step& step, std::vector<IValue>& frame, std::span<const at::Tensor> slots) const;

  template <class After>
  std::vector<IValue> run(std::vector<IValue> frame, std::span<const at::Tensor> slots,
                          const After& after) const;
};

namespace {

//! Compiles a graph to a program.
class Compiler {
 public:
  Compiler(const Graph& graph, std::optional<c10::Device> device)
      : graph_(graph), device_(device), operands_(graph.values.size()) {}

  template <class Program>
  void compile(Program& program) {
    for (const GraphInput& input : graph_.inputs) operand_of(input.value) = {From::Copy, frame_size_++};
    for (std::size_t i = 0; i < graph_.slots.size(); ++i) {
      operand_of(graph_.slots[i].value) = {From::Slot, static_cast<std::uint32_t>(i)};
    }
    program.num_inputs = graph_.inputs.size();
    program.num_slots = graph_.slots.size();
    const auto last = last_uses(graph_);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (graph_.nodes[i].kind != Node::Kind::Split) add_node(program, i, last[i]);
    }
    for (const Mutation& mutation : graph_.mutations) {
      program.mutations.emplace_back(operand_of(mutation.target), operand_of(mutation.from));
    }
    for (const Arg& output : graph_.outputs) program.outputs.push_back(operand(program, output, nullptr));
    program.frame_size = frame_size_;
  }

 private:
  Operand& operand_of(ValueId id) { return operands_[id.index()]; }

  template <class Program>
  void add_node(Program& program, std::size_t index, const std::vector<ValueId>& last) {
    const Node& node = graph_.nodes[index];
    Step step{.op = node.op, .scalar = node.scalar, .node = static_cast<std::uint32_t>(index)};
    step.first_operand = static_cast<std::uint32_t>(program.operands.size());
    std::vector<Operand> operands;
    for (std::size_t i = 0; i < node.args.size(); ++i) {
      const c10::Type* type = node.op ? node.op->schema().arguments()[i].type().get() : nullptr;
      const bool device = type && without_optional(*type).kind() == c10::TypeKind::DeviceObjType;
      // A factory call without a device also has a recorded device: the default one.
      const bool moved = device && device_ && node.args[i].constant() && reads_no_tensor(node);
      const bool ignored = is_recorded_dtype(node, i);
      operands.push_back(operand(program,
                                 moved     ? Arg{IValue(*device_)}
                                 : ignored ? Arg{IValue()}
                                           : node.args[i],
                                 type));
    }
    for (const ValueId id : last) {
      make_last(program, operands, operand_of(id).index);
      if (operand_of(id).from == From::Copy) free_.push_back(operand_of(id).index);
    }
    program.operands.insert(program.operands.end(), operands.begin(), operands.end());
    step.end_operand = static_cast<std::uint32_t>(program.operands.size());

    step.first_result = static_cast<std::uint32_t>(program.destinations.size());
    for (const Result& result : node.results) {
      Destination to{.is_list = result.is_list};
      if (result.is_list) {
        to.index = static_cast<std::uint32_t>(program.list_indices.size());
        to.count = static_cast<std::uint32_t>(result.ids.size());
        for (const ValueId id : result.ids) program.list_indices.push_back(new_index(id));
      } else {
        to.index = new_index(result.ids[0]);
      }
      program.destinations.push_back(to);
    }
    step.end_result = static_cast<std::uint32_t>(program.destinations.size());
    step.mode = mode_number(program, on_device(node.mode));
    step.call = node.op ? call_of(program, node, operands, step.typed) : Call::Scalar;
    program.names.push_back(node.name() + (node.module.empty() ? "" : " of module " + node.module));
    program.steps.push_back(step);
  }

  //! Export records the dtypes of tensors as assertions. They do not hold with autocast or converted
  //! parameters.
  static bool is_recorded_dtype(const Node& node, std::size_t arg) {
    return node.op && enum_kind(node.op->schema().arguments()[arg]) == EnumKind::Dtype &&
           node.op->operator_name().name == "aten::_assert_tensor_metadata";
  }

  //! Autocast of the CPU becomes that of the device to which the graph was moved.
  NodeMode on_device(NodeMode mode) const {
    if (!device_ || device_->is_cpu() || device_->is_meta()) return mode;
    const auto is_on_device = [&](const Autocast& cast) { return cast.device == device_->type(); };
    if (std::any_of(mode.autocast.begin(), mode.autocast.end(), is_on_device)) return mode;
    for (Autocast& cast : mode.autocast) {
      if (cast.device == c10::DeviceType::CPU) cast.device = device_->type();
    }
    return mode;
  }

  //! Decides whether the node can be called unboxed; if so, sets `typed` to the index of its handle.
  template <class Program>
  static Call call_of(Program& program, const Node& node, const std::vector<Operand>& operands,
                      std::uint32_t& typed) {
    const c10::FunctionSchema& schema = node.op->schema();
    const auto plain = [](const Operand& operand) {
      return operand.from != From::List && operand.from != From::Wrap;
    };
    if (schema.is_mutable() || schema.returns().size() != 1 || !is_tensor(*schema.returns()[0].type()) ||
        !std::all_of(operands.begin(), operands.end(), plain) || schema.arguments().size() > 3) {
      return Call::Boxed;
    }
    std::string kinds;
    for (const c10::Argument& argument : schema.arguments()) {
      const c10::Type& type = *argument.type();
      kinds += is_tensor(type)                            ? 't'
               : is_tensor_type(type)                     ? 'o'
               : type.kind() == c10::TypeKind::NumberType ? 's'
                                                          : '?';
    }
    const auto add = [&](auto& handles, Call call, auto* signature) {
      try {
        handles.push_back(node.op->typed<std::remove_pointer_t<decltype(signature)>>());
      } catch (const c10::Error&) {
        return Call::Boxed;  // registered with another C++ signature
      }
      typed = static_cast<std::uint32_t>(handles.size() - 1);
      return call;
    };
    if (kinds == "t") return add(program.unary, Call::Unary, static_cast<UnaryFunction*>(nullptr));
    if (kinds == "tt") return add(program.binary, Call::Binary, static_cast<BinaryFunction*>(nullptr));
    if (kinds == "tts" && operands[2].from == From::Constant) {
      return add(program.binary_scalar, Call::BinaryScalar, static_cast<BinaryScalarFunction*>(nullptr));
    }
    if (kinds == "tto") return add(program.affine, Call::Affine, static_cast<AffineFunction*>(nullptr));
    return Call::Boxed;
  }

  bool reads_no_tensor(const Node& node) const {
    bool none = true;
    for_each_read(node, [&](ValueId id) { none = none && graph_.value(id).type != ValueType::Tensor; });
    return none;
  }

  static bool is_tensor(const c10::Type& type) { return type.kind() == c10::TypeKind::TensorType; }

  std::uint32_t new_index(ValueId id) {
    if (id == kUnusedValue) return kNoIndex;
    // Reuse the indices of freed values: a small frame stays in the cache.
    std::uint32_t index = frame_size_;
    if (free_.empty()) {
      ++frame_size_;
    } else {
      index = free_.back();
      free_.pop_back();
    }
    operand_of(id) = {From::Copy, index};
    return index;
  }

  template <class Program>
  static std::uint32_t mode_number(Program& program, const NodeMode& mode) {
    for (std::size_t i = 0; i < program.modes.size(); ++i) {
      if (program.modes[i] == mode) return static_cast<std::uint32_t>(i);
    }
    program.modes.push_back(mode);
    return static_cast<std::uint32_t>(program.modes.size() - 1);
  }

  template <class Program>
  Operand operand(Program& program, const Arg& arg, const c10::Type* type) {
    if (const ValueId* id = arg.value()) {
      const bool wrap = type && is_tensor_type(*type) && graph_.value(*id).type != ValueType::Tensor;
      return wrap ? Operand{From::Wrap, operand_of(*id).index} : operand_of(*id);
    }
    if (const IValue* constant = arg.constant()) {
      program.constants.push_back(device_ && constant->isDevice() ? IValue(*device_) : *constant);
      return {From::Constant, static_cast<std::uint32_t>(program.constants.size() - 1)};
    }
    ListRecipe recipe{.element = without_optional(*type).containedType(0), .items = {}};
    for (const Arg& item : *arg.list()) recipe.items.push_back(operand(program, item, recipe.element.get()));
    program.lists.push_back(std::move(recipe));
    return {From::List, static_cast<std::uint32_t>(program.lists.size() - 1)};
  }

  //! Lets the last operand that reads this frame index move the value out.
  template <class Program>
  static bool make_last(Program& program, std::vector<Operand>& operands, std::uint32_t index) {
    for (auto operand = operands.rbegin(); operand != operands.rend(); ++operand) {
      if (operand->from == From::Copy && operand->index == index) {
        operand->from = From::Move;
        return true;
      }
      if (operand->from == From::List && make_last(program, program.lists[operand->index].items, index))
        return true;
    }
    return false;
  }

  const Graph& graph_;
  std::optional<c10::Device> device_;
  std::vector<Operand> operands_;
  std::uint32_t frame_size_ = 0;
  std::vector<std::uint32_t> free_;
};

}  // namespace

IValue Interpreter::Program::list(const ListRecipe& recipe, std::vector<IValue>& frame,
                                  std::span<const at::Tensor> slots) const {
  Stack items;
  items.reserve(recipe.items.size());
  for (const Operand& item : recipe.items) push(items, item, frame, slots);
  c10::impl::GenericList result(recipe.element);
  result.reserve(items.size());
  for (IValue& item : items) result.push_back(std::move(item));
  return result;
}

inline void Interpreter::Program::push(Stack& stack, const Operand& operand, std::vector<IValue>& frame,
                                       std::span<const at::Tensor> slots) const {
  switch (operand.from) {
    case From::Constant:
      stack.push_back(constants[operand.index]);
      return;
    case From::Copy:
      stack.push_back(frame[operand.index]);
      return;
    case From::Move:
      stack.push_back(std::move(frame[operand.index]));
      return;
    case From::Slot:
      stack.emplace_back(slots[operand.index]);
      return;
    case From::Wrap:
      stack.push_back(wrapped_number(frame[operand.index]));
      return;
    case From::List:
      stack.push_back(list(lists[operand.index], frame, slots));
      return;
  }
}

inline void Interpreter::Program::store(Stack& stack, const Step& step, std::vector<IValue>& frame) const {
  for (std::uint32_t i = step.first_result; i < step.end_result; ++i) {
    const Destination& to = destinations[i];
    IValue& value = stack[i - step.first_result];
    if (!to.is_list) {
      if (to.index != kNoIndex) frame[to.index] = std::move(value);
      continue;
    }
    const c10::ArrayRef<IValue> items = value.toListRef();
    if (items.size() != to.count) {
      throw UsageError(str_cat("the operator returned a list of ", items.size(), " items, but ", to.count,
                               " when the graph was created"));
    }
    for (std::uint32_t k = 0; k < to.count; ++k) {
      const std::uint32_t index = list_indices[to.index + k];
      if (index != kNoIndex) frame[index] = items[k];
    }
  }
  stack.clear();
}

inline const at::Tensor& Interpreter::Program::tensor(const Operand& operand,
                                                      const std::vector<IValue>& frame,
                                                      std::span<const at::Tensor> slots) const {
  switch (operand.from) {
    case From::Slot:
      return slots[operand.index];
    case From::Constant:
      return constants[operand.index].toTensor();
    case From::Copy:
    case From::Move:
    case From::Wrap:
    case From::List:
      break;
  }
  return frame[operand.index].toTensor();
}

inline void Interpreter::Program::call_typed(const Step& step, std::vector<IValue>& frame,
                                             std::span<const at::Tensor> slots) const {
  const Operand* from = operands.data() + step.first_operand;
  const auto arg = [&](std::size_t i) -> const at::Tensor& { return tensor(from[i], frame, slots); };
  at::Tensor result;
  switch (step.call) {
    case Call::Unary:
      result = unary[step.typed].call(arg(0));
      break;
    case Call::Binary:
      result = binary[step.typed].call(arg(0), arg(1));
      break;
    case Call::BinaryScalar:
      result = binary_scalar[step.typed].call(arg(0), arg(1), constants[from[2].index].toScalar());
      break;
    case Call::Affine: {
      const bool none = from[2].from == From::Constant && constants[from[2].index].isNone();
      result = affine[step.typed].call(arg(0), arg(1), none ? std::optional<at::Tensor>() : arg(2));
      break;
    }
    case Call::Boxed:
    case Call::Scalar:
      break;
  }
  for (std::uint32_t i = step.first_operand; i < step.end_operand; ++i) {
    if (operands[i].from == From::Move) frame[operands[i].index] = IValue();
  }
  const std::uint32_t index = destinations[step.first_result].index;
  if (index != kNoIndex) frame[index] = std::move(result);
}

template <class After>
std::vector<IValue> Interpreter::Program::run(std::vector<IValue> frame, std::span<const at::Tensor> slots,
                                              const After& after) const {
  if (frame.size() != num_inputs || slots.size() != num_slots) {
    throw UsageError(str_cat("the graph has ", num_inputs, " inputs and ", num_slots,
                             " tensors, but was given ", frame.size(), " and ", slots.size()));
  }
  frame.resize(frame_size);
  Stack stack;
  stack.reserve(32);
  std::uint32_t mode = 0;
  std::optional<ModeGuard> guard;
  std::size_t at = 0;
  try {
    for (; at < steps.size(); ++at) {
      const Step& step = steps[at];
      if (step.mode != mode) [[unlikely]] {
        mode = step.mode;
        guard.reset();
        if (mode != 0) guard.emplace(modes[mode]);
      }
      if (step.call == Call::Boxed || step.call == Call::Scalar) {
        for (std::uint32_t i = step.first_operand; i < step.end_operand; ++i)
          push(stack, operands[i], frame, slots);
        if (step.call == Call::Boxed) {
          step.op->callBoxed(stack);
        } else {
          IValue result = evaluate(step.scalar, stack);
          stack.clear();
          stack.push_back(std::move(result));
        }
        store(stack, step, frame);
      } else {
        call_typed(step, frame, slots);
      }
      after(step.node);
    }
  } catch (const c10::Error& error) {
    throw OperatorError(std::string("an operator failed: ") + error.what_without_backtrace(),
                        {.op = names[at]});
  } catch (const UsageError& error) {
    // The error may already name an inner operator.
    ErrorContext context = error.context();
    context.op += context.op.empty() ? names[at] : " in " + names[at];
    throw UsageError(error.message(), context, error.hint());
  }
  guard.reset();
  if (!mutations.empty()) {
    const c10::AutoGradMode no_grad(false);
    for (const auto& [target, from] : mutations) {
      push(stack, target, frame, slots);
      push(stack, from, frame, slots);
      stack[0].toTensor().copy_(stack[1].toTensor());
      stack.clear();
    }
  }
  std::vector<IValue> results;
  results.reserve(outputs.size());
  for (const Operand& output : outputs) push(results, output, frame, slots);
  return results;
}

Interpreter::Interpreter(const Graph& graph, std::optional<c10::Device> device) {
  auto program = std::make_unique<Program>();
  Compiler(graph, device).compile(*program);
  program_ = std::move(program);
}

Interpreter::~Interpreter() = default;
Interpreter::Interpreter(Interpreter&&) noexcept = default;
Interpreter& Interpreter::operator=(Interpreter&&) noexcept = default;

std::vector<IValue> Interpreter::run(std::vector<IValue> inputs, std::span<const at::Tensor> slots) const {
  return program_->run(std::move(inputs), slots, [](std::uint32_t) {});
}

std::vector<IValue> Interpreter::run(std::vector<IValue> inputs, std::span<const at::Tensor> slots,
                                     const std::function<void(std::size_t)>& after) const {
  return program_->run(std::move(inputs), slots, [&](std::uint32_t node) { after(node); });
}

}  // namespace penstock::graph
