// The tensor behind a distributed tensor: global sizes, the part of this rank, a mesh and placements. It has
// a backend key of its own, PrivateUse3, with which the autograd keys come, so that derivative formulas see
// global shapes; and one key above autograd, where operators' arguments are moved to where they are needed
// (kernels.h).
#pragma once

#include "tensor/layout.h"

#include <penstock/comm/work.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <functional>
#include <mutex>

namespace penstock {

constexpr auto kBackendKey = c10::DispatchKey::PrivateUse3;
//! A key that libtorch keeps for tensor types of other libraries; nothing of its own uses it.
constexpr auto kBeforeKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

//! In what libtorch says where it looks for the memory of a distributed tensor (printing, torch::save,
//! data_ptr).
constexpr const char* kNoMemory = "a distributed tensor has no memory of its own";

//! A part that is still on its way: waited for by the first who uses it.
class PendingLocal {
 public:
  PendingLocal(Work work, std::function<at::Tensor()> finish)
      : work_(std::move(work)), finish_(std::move(finish)) {}
  at::Tensor get();

 private:
  std::mutex mutex_;
  Work work_;
  std::function<at::Tensor()> finish_;
  at::Tensor result_;
};

//! A part, there or on its way.
struct Part {
  at::Tensor local;
  std::shared_ptr<PendingLocal> pending;
  const at::Tensor& get() {
    if (pending) local = pending->get();
    pending.reset();
    return local;
  }
};

//! What a parameter's module asks of the operators that use it (parallel/styles): where their input shall be.
struct Wish {
  Placements input;
};

//! The memory of a tensor that was moved for a view, and of the one that it was itself moved from.
struct MovedFrom {
  c10::weak_intrusive_ptr<c10::StorageImpl> memory;
  std::shared_ptr<const MovedFrom> before;
  //! Whether any of it is still held.
  bool alive() const { return !memory.expired() || (before && before->alive()); }
};

class DTensorImpl final : public c10::TensorImpl {
 public:
  DTensorImpl(Part part, MeshPtr mesh, const Placements& placements, at::ScalarType dtype, at::Device device,
              c10::IntArrayRef sizes, c10::IntArrayRef strides);
  //! With the sizes of another one.
  DTensorImpl(at::Tensor local, const DTensorImpl& like);

  const at::Tensor& local() const { return part_.pending ? part_.get() : part_.local; }
  //! Whether the part is still on its way, as far as this tensor knows.
  bool pending() const { return part_.pending != nullptr; }
  const MeshState& mesh() const { return *mesh_; }
  const MeshPtr& mesh_ptr() const { return mesh_; }
  const Placements& placements() const { return placements_; }

  //! Set on parameters and their views: operators move the other tensors.
  bool pinned = false;
  std::shared_ptr<const Wish> wish;

  //! Set on views that are of a moved copy and not of the tensor they were asked of: that tensor's memory. As
  //! long as someone else has it, writing to such a view would not reach it.
  std::shared_ptr<const MovedFrom> moved_from;

  //! The last copy of this tensor with other placements, so that several readers move it once.
  struct Memo {
    Placements placements;
    at::Tensor tensor;
    std::uint32_t version = 0;
  };
  std::unique_ptr<Memo> memo;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;
  const char* tensorimpl_type_name() const override { return "penstock::DTensor"; }
  //! False. Whoever reads memory asks here first: libtorch's error is then prepared to explain itself.
  bool has_storage() const override;
  const c10::Storage& storage() const override;

 private:
  mutable std::atomic<bool> explained_ = false;
  mutable Part part_;
  MeshPtr mesh_;
  Placements placements_;
};

//! Null for a plain or undefined tensor.
inline DTensorImpl* impl_of(const at::Tensor& tensor) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return impl->key_set().has(kBeforeKey) ? static_cast<DTensorImpl*>(impl) : nullptr;
}

//! A distributed tensor without history. Without strides it is laid out as its shard is, where every rank's
//! shard has the same sizes, and contiguous otherwise.
at::Tensor wrap(Part part, const MeshPtr& mesh, const Placements& placements, at::ScalarType dtype,
                at::Device device, c10::IntArrayRef sizes, c10::IntArrayRef strides);
at::Tensor wrap(const at::Tensor& local, const MeshPtr& mesh, const Placements& placements,
                c10::IntArrayRef sizes);

}  // namespace penstock
