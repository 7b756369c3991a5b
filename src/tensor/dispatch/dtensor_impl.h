// The TensorImpl of a distributed tensor: global sizes, the local shard, a mesh and placements. Its backend
// key is PrivateUse3, which implies the autograd keys, so derivative formulas see global shapes. A second key
// above autograd redistributes the arguments of operators (kernels.h).
#pragma once

#include "tensor/layout/layout.h"

#include <penstock/comm/work.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <functional>
#include <mutex>

namespace penstock::tensor {

constexpr auto kBackendKey = c10::DispatchKey::PrivateUse3;
//! A key that libtorch reserves for tensor types of other libraries and does not use itself.
constexpr auto kBeforeKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

//! Part of libtorch's error when code accesses the memory of a distributed tensor (printing, torch::save,
//! data_ptr).
constexpr const char* kNoMemory = "a distributed tensor has no memory of its own";

//! The result of a collective that may still run. The first `get` waits for it.
class PendingLocal {
 public:
  PendingLocal(comm::Work work, std::function<at::Tensor()> finish)
      : work_(std::move(work)), finish_(std::move(finish)) {}
  at::Tensor get();

 private:
  std::mutex mutex_;
  comm::Work work_;
  std::function<at::Tensor()> finish_;
  at::Tensor result_;
};

//! A local shard, complete or pending.
struct LocalShard {
  at::Tensor local;
  std::shared_ptr<PendingLocal> pending;
  const at::Tensor& get() {
    if (pending) local = pending->get();
    pending.reset();
    return local;
  }
};

//! Set by the style of a parameter's module (parallel/tensor): the placements of inputs of operators that use
//! it.
struct InputRequest {
  Placements input;
};

//! The storage of a tensor that was redistributed to make a view, and of the tensors it was redistributed
//! from.
struct MovedFrom {
  c10::weak_intrusive_ptr<c10::StorageImpl> memory;
  std::shared_ptr<const MovedFrom> before;
  //! Whether any of these storages is still referenced.
  bool alive() const { return !memory.expired() || (before && before->alive()); }
};

class DTensorImpl final : public c10::TensorImpl {
 public:
  DTensorImpl(LocalShard shard, MeshPtr mesh, Placements placements, at::ScalarType dtype, at::Device device,
              c10::IntArrayRef sizes, c10::IntArrayRef strides);
  //! With the metadata of another one.
  DTensorImpl(at::Tensor local, const DTensorImpl& like);

  const at::Tensor& local() const { return shard_.pending ? shard_.get() : shard_.local; }
  //! Whether the local shard is pending, as far as this tensor knows.
  bool pending() const { return shard_.pending != nullptr; }
  const DeviceMesh::Impl& mesh() const { return *mesh_; }
  const MeshPtr& mesh_ptr() const { return mesh_; }
  const Placements& placements() const { return placements_; }

  //! Set on parameters and their views: operators redistribute the other tensors instead.
  bool pinned = false;
  std::shared_ptr<const InputRequest> input_request;

  //! Set on views of a redistributed copy: the storage of the original tensor. While that is still
  //! referenced, a write to the view would not reach it.
  std::shared_ptr<const MovedFrom> moved_from;

  //! The last redistributed copy of this tensor, so that several readers redistribute it once.
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
  //! Returns false. Code that accesses memory calls it first; this prepares the text of libtorch's error.
  bool has_storage() const override;
  const c10::Storage& storage() const override;

 private:
  mutable std::atomic<bool> explained_ = false;
  mutable LocalShard shard_;
  MeshPtr mesh_;
  Placements placements_;
};

//! Null for a plain or undefined tensor.
inline DTensorImpl* impl_of(const at::Tensor& tensor) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return impl->key_set().has(kBeforeKey) ? static_cast<DTensorImpl*>(impl) : nullptr;
}

//! A distributed tensor without autograd history. Without strides, it takes the layout of its local shard if
//! all shards have the same sizes, and is contiguous otherwise.
at::Tensor wrap(LocalShard shard, const MeshPtr& mesh, const Placements& placements, at::ScalarType dtype,
                at::Device device, c10::IntArrayRef sizes, c10::IntArrayRef strides);
at::Tensor wrap(const at::Tensor& local, const MeshPtr& mesh, const Placements& placements,
                c10::IntArrayRef sizes);

}  // namespace penstock::tensor
