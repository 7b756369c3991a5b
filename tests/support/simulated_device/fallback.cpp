// The kernel of most operators: runs the CPU operator on the memory of the device.
#include "fallback.h"

#include "generator.h"
#include "host_alias.h"
#include "operator_rules.h"
#include "simulation.h"

#include <ATen/core/op_registration/adaption.h>
#include <c10/core/DeviceGuard.h>

#include <optional>

namespace penstock::test::simulated {
namespace {

struct AliasedTensor {
  at::Tensor device, host;
  bool write = false;
};

// One call of an operator. Arguments are replaced by CPU ones, results by those of the device.
class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), stack_(stack), name_(op.operator_name().name) {}

  void run();

 private:
  void lower_arguments();
  void lower_generator(c10::IValue& value);
  at::Tensor lower(const at::Tensor& tensor, const c10::Argument& argument);
  void launch_kernel();
  void update_resized();
  void lift_results();
  at::Tensor lift(const at::Tensor& tensor) const;
  // Applies `convert` to the tensors in a value: one, a list, or a list of optional ones.
  template <class Convert>
  static void convert_tensors(c10::IValue& value, const Convert& convert);

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const std::string name_;
  std::vector<AliasedTensor> aliases_;
  std::optional<c10::Device> device_;
  Moment moment_;
};

template <class Convert>
void HostCall::convert_tensors(c10::IValue& value, const Convert& convert) {
  if (value.isTensor()) {
    value = convert(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> converted;
    for (const at::Tensor& tensor : value.toTensorVector()) converted.push_back(convert(tensor));
    value = converted;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> converted;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      converted.push_back(tensor ? std::optional(convert(*tensor)) : std::nullopt);
    value = converted;
  }
}

at::Tensor HostCall::lower(const at::Tensor& tensor, const c10::Argument& argument) {
  if (!tensor.defined()) return tensor;
  if (tensor.is_cpu() && accepts_cpu_tensor(op_, argument, tensor.dim() == 0)) return tensor;
  c10::impl::check_and_update_common_device(device_, tensor, name_.c_str(), argument.name().c_str());
  if (!tensor.is_cuda()) return tensor;
  const bool write = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  for (AliasedTensor& alias : aliases_) {
    if (!alias.device.is_same(tensor)) continue;
    alias.write = alias.write || write;
    return alias.host;
  }
  aliases_.push_back({tensor, host_alias(tensor), write});
  return aliases_.back().host;
}

void HostCall::lower_generator(c10::IValue& value) {
  const at::Generator given = value.isNone() ? default_generator(device_->index()) : value.toGenerator();
  TORCH_CHECK(given.device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
              given.device().type(), "'");
  value = static_cast<SimulatedGenerator*>(given.unsafeGetGeneratorImpl())->next();
}

void HostCall::lower_arguments() {
  const auto& arguments = op_.schema().arguments();
  c10::IValue* const first = stack_.data() + stack_.size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    convert_tensors(first[i], [&](const at::Tensor& tensor) { return lower(tensor, arguments[i]); });
    if (first[i].isDevice() && first[i].toDevice().is_cuda()) {
      device_ = first[i].toDevice();
      first[i] = c10::Device(c10::kCPU);
    }
  }
  if (!device_ || !device_->has_index()) device_ = c10::Device(c10::kCUDA, current_device());
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == "generator") lower_generator(first[i]);
}

void HostCall::launch_kernel() {
  moment_ = launch(device_->index());
  for (const AliasedTensor& alias : aliases_) record_access(alias.device, alias.write, name_, moment_);
  op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
}

// An output argument gets the shape, and if it has grown the content, that the operator gave to its alias.
void HostCall::update_resized() {
  const DeviceMemory& memory = simulation().memory;
  for (const AliasedTensor& alias : aliases_) {
    const bool reshaped = alias.device.sizes() != alias.host.sizes() ||
                          (alias.device.numel() > 0 && alias.device.strides() != alias.host.strides());
    if (!alias.write || !reshaped) continue;
    const bool moved = alias.host.storage().data() != memory.writable(alias.device.storage().data());
    grow_storage(alias.device, alias.host.storage().nbytes());
    alias.device.unsafeGetTensorImpl()->set_sizes_and_strides(alias.host.sizes(), alias.host.strides());
    if (moved && alias.host.numel() > 0) host_alias(alias.device).copy_(alias.host);
    record_access(alias.device, true, name_, moment_);
  }
}

at::Tensor HostCall::lift(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.is_cpu()) return tensor;
  for (const AliasedTensor& alias : aliases_)
    if (alias.host.is_same(tensor)) return alias.device;
  for (const AliasedTensor& alias : aliases_)
    if (alias.host.storage().is_alias_of(tensor.storage())) return device_view(alias.device, tensor);
  return device_copy(tensor, *device_, name_, moment_);
}

void HostCall::lift_results() {
  const std::size_t count = op_.schema().returns().size();
  for (std::size_t i = stack_.size() - count; i < stack_.size(); ++i)
    convert_tensors(stack_[i], [&](const at::Tensor& tensor) { return lift(tensor); });
}

void HostCall::run() {
  TORCH_CHECK_NOT_IMPLEMENTED(op_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), "Could not run '",
                              name_, "' on a simulated device: it has no CPU kernel to run instead");
  TORCH_CHECK_NOT_IMPLEMENTED(!hides_generator(op_), "Could not run '", name_,
                              "' on a simulated device: its CPU kernel would use the generator of the CPU");
  const bool blocks = reads_values_on_host(op_, stack_);
  lower_arguments();
  const c10::DeviceGuard guard(*device_);
  const KernelScope scope;
  launch_kernel();
  update_resized();
  lift_results();
  if (blocks) synchronize_stream(current_stream(device_->index()), name_);
}

}  // namespace

void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  HostCall(op, *stack).run();
}

}  // namespace penstock::test::simulated
