// Shape rules. Many libtorch operators have no meta kernel in C++, only in Python; the rules here cover the
// composite operators common in models.
#include "graph/ir/meta.h"

#include "graph/ir/schema.h"

#include <penstock/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

namespace penstock::graph {
namespace {

using c10::IValue;
using torch::jit::Stack;

IValue meta_value(const IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(meta_like(value.toTensor())) : value;
  if (!value.isTensorList() && !value.isOptionalTensorList()) return value;
  c10::impl::GenericList list(value.toList().elementType());
  for (const IValue& item : value.toListRef()) list.push_back(meta_value(item));
  return list;
}

at::Tensor like(const at::Tensor& tensor, at::IntArrayRef sizes) {
  return at::empty(sizes, tensor.options().device(at::kMeta));
}

//! Returns the result of an operator that has a rule here; undefined otherwise.
at::Tensor by_rule(const std::string& name, const IValue* args) {
  static constexpr std::array elementwise = {
      "aten::layer_norm",    "aten::group_norm", "aten::batch_norm",      "aten::rms_norm",
      "aten::instance_norm", "aten::dropout",    "aten::feature_dropout", "aten::alpha_dropout"};
  if (std::find(elementwise.begin(), elementwise.end(), name) != elementwise.end()) {
    const at::Tensor& input = args[0].toTensor();
    return like(input, input.sizes());
  }
  if (name == "aten::embedding") {
    const at::Tensor &weight = args[0].toTensor(), &indices = args[1].toTensor();
    std::vector<std::int64_t> sizes = indices.sizes().vec();
    sizes.push_back(weight.size(1));
    return like(weight, sizes);
  }
  if (name == "aten::scaled_dot_product_attention") {
    const at::Tensor &query = args[0].toTensor(), &value = args[2].toTensor();
    std::vector<std::int64_t> sizes = query.sizes().vec();
    sizes.back() = value.size(-1);
    return like(query, sizes);
  }
  return {};
}

IValue zeros_of(const IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? IValue(at::zeros({}, tensor.options().device(at::kCPU)).expand(tensor.sizes()))
                            : value;
  }
  if (!value.isTensorList() && !value.isOptionalTensorList()) return value;
  c10::impl::GenericList list(value.toList().elementType());
  for (const IValue& item : value.toListRef()) list.push_back(zeros_of(item));
  return list;
}

//! Fallback: runs the operator on expanded zeros, so that only the results allocate memory.
void call_on_zeros(const c10::OperatorHandle& op, const Stack& arguments, Stack& stack) {
  const c10::AutoGradMode no_grad(false);
  Stack cpu_stack;
  for (const IValue& argument : arguments) {
    cpu_stack.push_back(argument.isDevice() ? IValue(c10::Device(c10::kCPU)) : zeros_of(argument));
  }
  op.callBoxed(cpu_stack);
  for (const IValue& result : cpu_stack) stack.push_back(meta_value(result));
}

}  // namespace

at::Tensor meta_like(const at::Tensor& tensor) {
  if (tensor.is_meta()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

void redirect_devices(const c10::OperatorHandle& op, Stack& stack) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (without_optional(*arguments[i].type()).kind() != c10::TypeKind::DeviceObjType) continue;
    stack[stack.size() - arguments.size() + i] = c10::Device(c10::kMeta);
  }
}

void call_without_memory(const c10::OperatorHandle& op, Stack& stack) {
  const std::size_t count = op.schema().arguments().size();
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) stack[i] = meta_value(stack[i]);
  redirect_devices(op, stack);
  if (at::Tensor result = by_rule(op.operator_name().name, stack.data() + stack.size() - count);
      result.defined()) {
    stack.resize(stack.size() - count);
    stack.emplace_back(std::move(result));
    return;
  }
  const Stack arguments(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
  const std::size_t below = stack.size() - count;
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    stack.resize(below);
    if (!op.hasTag(at::Tag::dynamic_output_shape) && !op.hasTag(at::Tag::data_dependent_output) &&
        !op.schema().is_mutable()) {
      call_on_zeros(op, arguments, stack);
      return;
    }
    throw UsageError(
        "the result sizes of this operator cannot be inferred, so it cannot be captured without memory",
        {.op = c10::toString(op.operator_name())},
        "capture a smaller model of the same architecture with memory");
  }
}

}  // namespace penstock::graph
