// CPU tensors over the memory of device tensors, for the CPU operators that stand in for CUDA kernels.
#pragma once

#include "stream_clocks.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>

namespace penstock::test::simulated {

//! While it lives, the operators of a kernel are invisible to autograd, autocast and other modes of this
//! thread.
class KernelScope {
  const c10::impl::ForceDispatchKeyGuard keys_{
      c10::default_included_set,
      c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView};
};

//! A CPU tensor over the same bytes, through the writable mapping. If an operator makes it larger, it gets
//! memory of its own.
at::Tensor host_alias(const at::Tensor& tensor);

//! A view of a device tensor's storage with the metadata of `alias`, a view of its host alias.
at::Tensor device_view(const at::Tensor& base, const at::Tensor& alias);

//! A copy of a result on the device, which `moment` writes.
at::Tensor device_copy(const at::Tensor& host, c10::Device device, const std::string& operation,
                       Moment moment);

//! Makes the storage of a device tensor at least this large, and keeps its content.
void grow_storage(const at::Tensor& tensor, std::size_t bytes);

}  // namespace penstock::test::simulated
