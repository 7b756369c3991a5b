// Giving a tensor other content while it keeps its identity.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace penstock {

// Users hold the tensors of their modules wherever they like, so a tensor must stay the same object when it
// gets memory. Tensor::set_data does that between kinds of device, but not away from meta, though nothing
// else differs there.
struct TensorContent : c10::TensorImpl {
  static void replace(const at::Tensor& tensor, const at::Tensor& by) {
    copy_tensor_metadata(by.unsafeGetTensorImpl(), tensor.unsafeGetTensorImpl(),
                         tensor.unsafeGetTensorImpl()->version_counter(),
                         /*allow_tensor_metadata_change=*/true);
  }

  //! The tensor becomes `moved`, a copy of it on another device.
  static void move_to(const at::Tensor& tensor, const at::Tensor& moved) {
    if (tensor.is_meta() || moved.is_meta()) return replace(tensor, moved.detach());
    tensor.set_data(moved.detach());
  }
};

}  // namespace penstock
