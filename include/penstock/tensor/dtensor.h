// Distributed tensors: an at::Tensor of global shape whose elements lie on the ranks of a mesh. It goes
// through operators, autograd, modules and optimizers like any other tensor. docs/parallel.md tells how.
#pragma once

#include <penstock/tensor/mesh.h>
#include <penstock/tensor/placement.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace penstock {

//! Cuts a whole tensor, the same on every rank or that of the mesh's first rank, into a distributed one. The
//! result is a leaf; it requires a gradient if the tensor does.
at::Tensor distribute_tensor(const at::Tensor& whole, const DeviceMesh& mesh, Placements placements,
                             bool broadcast = true);

//! The distributed tensor whose part on this rank is `local`. Where shards are uneven its global sizes must
//! be given. The gradient flows back to `local`.
at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh, Placements placements,
                      std::optional<std::vector<std::int64_t>> sizes = std::nullopt);

//! This rank's part. Its gradient is read with `grad_placements` (the tensor's own by default, replicated
//! where it is partial).
at::Tensor to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements = std::nullopt);

//! The whole, on every rank.
at::Tensor full_tensor(const at::Tensor& tensor);

//! Redistributes the tensor with the least traffic. The gradient returns in the original placements, reduced
//! where it is a partial sum, also if nothing is moved.
at::Tensor redistribute(const at::Tensor& tensor, Placements placements);

bool is_dtensor(const at::Tensor& tensor);
//! These throw UsageError for a plain tensor.
DeviceMesh mesh_of(const at::Tensor& tensor);
const Placements& placements_of(const at::Tensor& tensor);
//! This rank's part without its gradient; it shares memory with the tensor.
const at::Tensor& local_of(const at::Tensor& tensor);

//! UsageError on every rank if ranks that replicate a tensor hold different values, as a draw from each
//! rank's own generator makes them. Compares checksums: a small message per axis of the mesh. Collective.
void check_replicas(const at::Tensor& tensor);
//! The same for a plain tensor, which counts as replicated where it meets distributed ones.
void check_replicas(const at::Tensor& plain, const DeviceMesh& mesh);

//! A parameter: its gradients are brought to its placements as they come, and operators move other tensors
//! rather than it.
at::Tensor distribute_parameter(const at::Tensor& whole, const DeviceMesh& mesh, Placements placements,
                                bool broadcast = true);

//! `DTensor([4, 8], float, DeviceMesh(tp=2), [Shard(0)])` and the elements of this rank.
std::string describe(const at::Tensor& tensor);

// Constructors. Random numbers depend on the mesh's seed and the number of earlier draws, not on how the
// tensor is cut.
at::Tensor distributed_full(c10::IntArrayRef sizes, double value, const DeviceMesh& mesh,
                            Placements placements, at::ScalarType dtype = at::kFloat);
at::Tensor distributed_zeros(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                             at::ScalarType dtype = at::kFloat);
at::Tensor distributed_ones(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                            at::ScalarType dtype = at::kFloat);
//! Uniform in [0, 1).
at::Tensor distributed_rand(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                            at::ScalarType dtype = at::kFloat);
//! Normal.
at::Tensor distributed_randn(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                             at::ScalarType dtype = at::kFloat);

//! While it lives, operators without a rule run on this thread with all their tensors replicated instead of
//! throwing.
class ReplicateUnknownOps {
 public:
  ReplicateUnknownOps();
  ~ReplicateUnknownOps();
  ReplicateUnknownOps(const ReplicateUnknownOps&) = delete;
  ReplicateUnknownOps& operator=(const ReplicateUnknownOps&) = delete;

 private:
  bool outer_;
};

//! What redistribution sent on this thread since it was last reset, as counted by this rank.
struct Traffic {
  std::int64_t all_reduces = 0, all_gathers = 0, reduce_scatters = 0, all_to_alls = 0;
  std::int64_t bytes = 0;  //!< that a ring would send from this rank
  std::int64_t calls() const { return all_reduces + all_gathers + reduce_scatters + all_to_alls; }
};
Traffic& traffic();

}  // namespace penstock
