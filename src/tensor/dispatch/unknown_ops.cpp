// Handling of operators without a sharding rule.
#include "tensor/dispatch/unknown_ops.h"

#include "tensor/dispatch/dtensor_impl.h"
#include "tensor/dispatch/kernels.h"
#include "value/carried_setting.h"

#include <penstock/base/error.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/core/enum_tag.h>
#include <ATen/ops/max_pool1d_with_indices.h>

#include <algorithm>
#include <string_view>

namespace penstock::tensor {
namespace {

constexpr std::string_view kReplicateUnknown = "penstock: ReplicateUnknownOps";
constexpr value::CarriedSetting<bool> replicate_unknown(&kReplicateUnknown);

bool writes_first(const c10::FunctionSchema& schema) {
  return !schema.arguments().empty() && schema.arguments()[0].alias_info() &&
         schema.arguments()[0].alias_info()->isWrite();
}

//! Whether libtorch's error is about a distributed tensor: it has no memory, or no backend kernel.
bool about_our_tensor(std::string_view message) {
  return message.find(kNoMemory) != std::string_view::npos ||
         message.find("penstock::DTensor") != std::string_view::npos ||
         message.find("PrivateUse3") != std::string_view::npos;
}

//! A separate type, so that a composite operator can catch it and report its own name instead.
struct UnknownOp final : UsageError {
  using UsageError::UsageError;
};

//! Runs libtorch's decomposition of the operator. If that fails, the operator counts as unknown.
void compose(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const Stack args(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const std::size_t below = stack->size() - count;
  try {
    // The default kernel for backends without their own.
    return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse2), stack);
  } catch (const UnknownOp&) {
  } catch (const c10::Error& e) {
    if (!about_our_tensor(e.what_without_backtrace())) throw;
  }
  stack->resize(below);
  stack->insert(stack->end(), args.begin(), args.end());
  refuse_or_replicate(op, keys, stack);
}

bool has(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return op.hasKernelForDispatchKey(key);
}

}  // namespace

void refuse_or_replicate(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const bool writes = writes_first(op.schema());
  const OpRule rule;
  OpCall call(op, rule, stack);
  if (replicate_unknown.find() == nullptr || writes || !call.mesh) {
    throw UnknownOp("there is no sharding rule for " + to_string(call), {.op = op.schema().name()},
                    writes ? "use the out-of-place operator, or work on local_of() of the tensor"
                           : "redistribute its arguments to Replicate and compute on to_local() of them, or "
                             "create a ReplicateUnknownOps around the call");
  }
  run_on_shards(call);
}

void register_refusals(torch::Library& library, const RuleTable& table) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const std::string text =
        name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    const auto op = dispatcher.findOp(name);
    if (table.contains(text) || !op || !op->hasSchema()) continue;
    if (has(*op, c10::DispatchKey::CompositeImplicitAutograd)) continue;  // decomposed above autograd
    const auto& arguments = op->schema().arguments();
    const auto is_out = [](const c10::Argument& a) { return a.is_out(); };
    // The sizes and strides of a distributed tensor differ from those of its shard.
    const bool changes_view =
        op->hasTag(at::Tag::inplace_view) ||
        (!arguments.empty() && arguments[0].alias_info() && !arguments[0].alias_info()->isWrite());
    const bool composed = has(*op, c10::DispatchKey::CompositeExplicitAutograd);
    if (has(*op, c10::DispatchKey::CompositeExplicitAutogradNonFunctional) || (composed && changes_view)) {
      library.impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&refuse_or_replicate>());
    } else if (composed && !op->hasTag(at::Tag::pointwise) &&
               std::none_of(arguments.begin(), arguments.end(), is_out)) {
      library.impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&compose>());
    }
  }
}

void register_decompositions(torch::Library& library) {
  // Without a gradient, the decomposition for CPU tensors accesses memory. This is the one with a gradient.
  library.impl("max_pool1d", [](const at::Tensor& input, c10::IntArrayRef kernel_size,
                                c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation,
                                bool ceil_mode) {
    return std::get<0>(at::max_pool1d_with_indices(input, kernel_size, stride, padding, dilation, ceil_mode));
  });
}

ReplicateUnknownOps::ReplicateUnknownOps()
    : mode_(std::make_shared<value::CarriedSetting<bool>::Scope>(replicate_unknown, true)) {}
ReplicateUnknownOps::~ReplicateUnknownOps() = default;

}  // namespace penstock::tensor
