// Runs operators of CUDA tensors on the CPU. In the fake runtime, device memory is host memory, so a CPU
// tensor can share the memory of a CUDA tensor. The current stream is synchronized first, so an operator sees
// what was launched before it; the host then computes at once.
#include "host_kernels.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda();
}

//! A CPU tensor with the memory of a CUDA tensor.
at::Tensor host_view(const at::Tensor& tensor) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(),
      c10::DataPtr(tensor.storage().mutable_data(), c10::Device(c10::kCPU)), nullptr, false);
  at::Tensor view = at::empty({0}, tensor.options().device(c10::kCPU));
  view.set_(c10::Storage(storage), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

void wait_for_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl devices(c10::kCUDA);
  devices.synchronizeStream(devices.getStream(device));
}

//! The arguments and results of one call.
class HostCall {
 public:
  at::Tensor lower(const at::Tensor& tensor) {
    if (!is_on_device(tensor)) return tensor;
    device_ = tensor.device();
    for (const auto& [device_tensor, host] : pairs_)
      if (device_tensor.is_same(tensor)) return host;
    // The operator may resize an empty tensor, which a view of foreign memory cannot be.
    const bool resizable = tensor.numel() == 0;
    return pairs_
        .emplace_back(tensor, resizable ? at::empty(tensor.sizes(), tensor.options().device(c10::kCPU))
                                        : host_view(tensor))
        .second;
  }

  void lower(c10::IValue& value) {
    if (value.isTensor()) {
      value = lower(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(lower(tensor));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
        list.push_back(tensor ? std::optional(lower(*tensor)) : std::nullopt);
      value = list;
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      device_ = value.toDevice();
      value = c10::Device(c10::kCPU);
    }
  }

  //! An argument that the operator returns stays the argument. A result that shares its memory becomes a view
  //! of it.
  at::Tensor raise(const at::Tensor& result) const {
    if (!result.defined() || !result.is_cpu()) return result;
    for (const auto& [device_tensor, host] : pairs_) {
      if (!host.is_same(result)) continue;
      if (device_tensor.sizes() != result.sizes()) {  // an `out` argument that was resized
        device_tensor.resize_(result.sizes());
        host_view(device_tensor).copy_(result);
      }
      return device_tensor;
    }
    for (const auto& [device_tensor, host] : pairs_)
      if (result.storage().data() != nullptr && result.storage().data() == host.storage().data())
        return device_tensor.as_strided(result.sizes(), result.strides(), result.storage_offset());
    const bool dense = result.is_non_overlapping_and_dense();
    const at::Tensor moved =
        at::empty_strided(result.sizes(), dense ? result.strides() : result.contiguous().strides(),
                          result.options().device(device()));
    if (result.numel() > 0) host_view(moved).copy_(result);
    return moved;
  }

  void raise(c10::IValue& value) const {
    if (value.isTensor()) {
      value = raise(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(raise(tensor));
      value = list;
    }
  }

  c10::Device device() const { return device_.value_or(c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice()); }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;  //!< (CUDA tensor, its view on the host)
  std::optional<c10::Device> device_;
};

void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowAutograd below;
  HostCall call;
  const std::size_t arguments = op.schema().arguments().size();
  for (std::size_t i = stack->size() - arguments; i < stack->size(); ++i) call.lower((*stack)[i]);
  const c10::DeviceGuard guard(call.device());
  wait_for_stream(call.device());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (std::size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    call.raise((*stack)[i]);
}

at::Tensor& copy_on_host(at::Tensor& self, const at::Tensor& source, bool /*non_blocking*/) {
  if (self.is_same(source)) return self;
  const at::AutoDispatchBelowAutograd below;
  for (const at::Tensor& tensor : {self, source})
    if (is_on_device(tensor)) wait_for_stream(tensor.device());
  at::Tensor to = is_on_device(self) ? host_view(self) : self;
  to.copy_(is_on_device(source) ? host_view(source) : source);
  return self;
}

// What libtorch implements without a kernel.
const std::set<std::string> kKept{"empty.memory_format",
                                  "empty_strided",
                                  "as_strided",
                                  "view",
                                  "_reshape_alias",
                                  "set_.source_Tensor",
                                  "set_.source_Storage",
                                  "set_.source_Storage_storage_offset",
                                  "set_",
                                  "resize_",
                                  "record_stream",
                                  "_local_scalar_dense",
                                  "copy_",
                                  "is_pinned",
                                  "_pin_memory",
                                  "is_set_to",
                                  "unfold",
                                  "view.dtype",
                                  "view_as_complex",
                                  "view_as_real"};

void replace_kernels(torch::Library& library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != std::optional<std::string_view>("aten")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
    // The second is that of operators on lists, which have one kernel for all other devices.
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))
      continue;
    constexpr std::size_t prefix = 6;  // `aten::`
    const std::string text =
        name.name.substr(prefix) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    if (kKept.contains(text)) continue;
    library.impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
  library.impl("copy_", copy_on_host);
}

}  // namespace

void use_host_kernels() {
  static auto* const library = [] {
    auto* const made =
        new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    replace_kernels(*made);
    return made;
  }();
  (void)library;
}

}  // namespace penstock::test
