// Fused optimizer steps: one call for lists of parameters, gradients and states. The step is pointwise, so it
// runs on the local shards, with the gradient redistributed to the placements of the parameter.
#include "tensor/dispatch/autograd.h"
#include "tensor/rules/rules.h"

#include <penstock/base/error.h>

namespace penstock::tensor {
namespace {

void refuse_partial(const c10::OperatorHandle& op, const DTensorImpl& parameter) {
  for (const AxisPlacement& placement : parameter.placements()) {
    if (!placement.is_partial()) continue;
    throw UsageError("a parameter with placements " + to_string(parameter.placements()) +
                         " cannot be updated by an optimizer",
                     {.op = op.schema().name()}, "redistribute the parameter first");
  }
}

}  // namespace

void step_shards(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const std::size_t base = stack->size() - count;
  const std::vector<at::Tensor> parameters = (*stack)[base].toTensorVector();
  for (std::size_t arg = 0; arg < count; ++arg) {
    c10::IValue& value = (*stack)[base + arg];
    if (!value.isTensorList()) continue;
    std::vector<at::Tensor> items = value.toTensorVector();
    for (std::size_t i = 0; i < items.size() && i < parameters.size(); ++i) {
      if (!impl_of(items[i])) continue;
      const DTensorImpl* const parameter = impl_of(parameters[i]);
      if (!parameter)
        throw UsageError("a plain parameter has a distributed gradient or state", {.op = op.schema().name()});
      refuse_partial(op, *parameter);
      items[i] = impl_of(redistributed(items[i], parameter->placements(), false))->local();
    }
    value = std::move(items);
  }
  op.callBoxed(stack);
}

}  // namespace penstock::tensor
