// Uses callbacks of libtorch's RecordFunction. The graph interpreter provides the module path.
#include "train/diagnostics/operator_observer.h"

#include "graph/run/node_observer.h"
#include "train/model/tensor_parallel_stage.h"

#include <penstock/value/tree.h>

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <string_view>

namespace penstock::train {
namespace {

thread_local OperatorObserver* current = nullptr;

template <class Values, class Test>
bool any_tensor(const Values& values, const Test& test) {
  for (const c10::IValue& value : values)
    for (const at::Tensor& tensor : value::tensors_of(value))
      if (tensor.defined() && test(local_shard(tensor))) return true;
  return false;
}

bool holds_nan(const at::Tensor& tensor) {
  return tensor.is_floating_point() && tensor.isnan().any().item<bool>();
}

// Uninitialized memory may contain any value.
bool is_uninitialized(std::string_view op) {
  return op.find("empty") != std::string_view::npos;
}

}  // namespace

// Only operators that the model calls directly count, not nested calls.
struct OperatorObserver::Callbacks {
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

OperatorObserver::OperatorObserver(std::vector<at::Tensor> suspects) {
  for (const at::Tensor& tensor : suspects)
    if (const at::Tensor local = local_shard(tensor); local.has_storage()) suspects_.push_back(local);
  current = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(Callbacks::start, Callbacks::end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
  graph::node_observer() = [this, done = false](const graph::Node& node) mutable {
    if (first_.empty() || std::exchange(done, true)) return;
    first_ = node.name() + (node.module.empty() ? "" : " of module " + node.module);
  };
}

OperatorObserver::~OperatorObserver() {
  graph::node_observer() = nullptr;
  at::removeCallback(handle_);
  current = nullptr;
}

}  // namespace penstock::train
