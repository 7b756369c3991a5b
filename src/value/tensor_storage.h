// Replaces the contents of a tensor while it remains the same object.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace penstock::value {

// Users may hold references to the tensors of their modules, so a tensor must remain the same object when it
// gets memory. Tensor::set_data supports this between device types, but not from meta, although nothing else
// differs there.
struct TensorStorage : c10::TensorImpl {
  static void replace(const at::Tensor& tensor, const at::Tensor& by) {
    copy_tensor_metadata(by.unsafeGetTensorImpl(), tensor.unsafeGetTensorImpl(),
                         tensor.unsafeGetTensorImpl()->version_counter(),
                         /*allow_tensor_metadata_change=*/true);
  }

  //! Replaces the contents by `moved`, a copy of the tensor on another device.
  static void move_to(const at::Tensor& tensor, const at::Tensor& moved) {
    if (tensor.is_meta() || moved.is_meta()) return replace(tensor, moved.detach());
    tensor.set_data(moved.detach());
  }
};

}  // namespace penstock::value
