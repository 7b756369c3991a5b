// Callbacks of libtorch's RecordFunction; the module comes from the graph's interpreter.
#include "train/operator_watch.h"

#include "graph/node_observer.h"
#include "train/tensor_parallel.h"

#include <penstock/value/tree.h>

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <string_view>

namespace penstock::train {
namespace {

thread_local OperatorWatch* current = nullptr;

template <class Values, class Test>
bool any_tensor(const Values& values, const Test& test) {
  for (const c10::IValue& value : values)
    for (const at::Tensor& tensor : tensors_of(value))
      if (tensor.defined() && test(local_part(tensor))) return true;
  return false;
}

bool holds_nan(const at::Tensor& tensor) {
  return tensor.is_floating_point() && tensor.isnan().any().item<bool>();
}

// New memory may hold anything.
bool is_uninitialized(std::string_view op) {
  return op.find("empty") != std::string_view::npos;
}

}  // namespace

// Only operators that the model itself calls count, not those that they call.
struct OperatorWatch::Callbacks {
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& op) {
    if (current == nullptr || current->depth_++ > 0 || !current->first_.empty()) return nullptr;
    const auto suspect = [](const at::Tensor& tensor) {
      return std::any_of(current->suspects_.begin(), current->suspects_.end(), [&](const at::Tensor& other) {
        return tensor.has_storage() && tensor.is_alias_of(other);
      });
    };
    if (any_tensor(op.inputs(), suspect)) current->first_ = op.name();
    return nullptr;
  }

  static void end(const at::RecordFunction& op, at::ObserverContext*) {
    if (current == nullptr || --current->depth_ > 0 || !current->first_.empty() ||
        !current->suspects_.empty() || is_uninitialized(op.name()))
      return;
    const at::DisableRecordFunctionGuard own_operators;
    const at::NoGradGuard no_grad;
    if (any_tensor(op.outputs(), holds_nan)) current->first_ = op.name();
  }
};

OperatorWatch::OperatorWatch(std::vector<at::Tensor> suspects) {
  for (const at::Tensor& tensor : suspects)
    if (const at::Tensor local = local_part(tensor); local.has_storage()) suspects_.push_back(local);
  current = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(Callbacks::start, Callbacks::end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
  node_observer() = [this, done = false](const Node& node) mutable {
    if (first_.empty() || std::exchange(done, true)) return;
    first_ = node.name() + (node.module.empty() ? "" : " of module " + node.module);
  };
}

OperatorWatch::~OperatorWatch() {
  node_observer() = nullptr;
  at::removeCallback(handle_);
  current = nullptr;
}

}  // namespace penstock::train
