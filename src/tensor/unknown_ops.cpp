// What happens to operators without a rule.
#include "tensor/unknown_ops.h"

#include "tensor/impl.h"
#include "tensor/kernels.h"

#include <penstock/base/error.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string_view>

namespace penstock {
namespace {

thread_local bool replicate_unknown = false;

bool writes_first(const c10::FunctionSchema& schema) {
  return !schema.arguments().empty() && schema.arguments()[0].alias_info() &&
         schema.arguments()[0].alias_info()->isWrite();
}

//! libtorch's error about a tensor of ours: it has no memory, or a key that no backend has.
bool about_our_tensor(std::string_view message) {
  return message.find(kNoMemory) != std::string_view::npos ||
         message.find("penstock::DTensor") != std::string_view::npos ||
         message.find("PrivateUse3") != std::string_view::npos;
}

//! So that an operator which is made of an unknown one can name itself instead.
struct UnknownOp final : UsageError {
  using UsageError::UsageError;
};

//! Runs what libtorch makes the operator of. Where that is not possible, the operator counts as unknown.
void compose(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const Stack args(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const std::size_t below = stack->size() - count;
  try {
    // The kernel that every backend without one of its own gets.
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
  if (!replicate_unknown || writes || !call.mesh) {
    throw UnknownOp("there is no sharding rule for " + call.text(), {.op = op.schema().name()},
                    writes ? "use the operator that returns a new tensor, or work on local_of() the tensor"
                           : "redistribute its arguments to Replicate and compute on to_local() of them, or "
                             "hold a ReplicateUnknownOps around the call");
  }
  run_on_shards(call);
}

void refuse_the_rest(torch::Library& library, const RuleTable& table) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const std::string text =
        name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    const auto op = dispatcher.findOp(name);
    if (table.contains(text) || !op || !op->hasSchema()) continue;
    if (has(*op, c10::DispatchKey::CompositeImplicitAutograd)) continue;  // made of others, above autograd
    const auto& arguments = op->schema().arguments();
    const auto is_out = [](const c10::Argument& a) { return a.is_out(); };
    // Sizes and strides are the tensor's own, and a shard's are others.
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

ReplicateUnknownOps::ReplicateUnknownOps() : outer_(replicate_unknown) {
  replicate_unknown = true;
}
ReplicateUnknownOps::~ReplicateUnknownOps() {
  replicate_unknown = outer_;
}

}  // namespace penstock
