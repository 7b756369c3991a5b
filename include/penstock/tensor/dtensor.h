// Distributed tensors: an at::Tensor with a global shape whose elements are stored on the ranks of a mesh.
// Operators, autograd, modules and optimizers accept it like any other tensor. See docs/parallel.md.
#pragma once

#include <penstock/tensor/mesh.h>
#include <penstock/tensor/placement.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tensor {

//! Shards a full tensor over the mesh. With `broadcast`, the values of the mesh's first rank are used;
//! without it, all ranks must pass the same values. The result is a leaf and requires a gradient if the
//! tensor does.
at::Tensor distribute_tensor(const at::Tensor& full, const DeviceMesh& mesh, Placements placements,
                             bool broadcast = true);

//! Returns the distributed tensor whose local shard is `local`. The global `sizes` are required if shards are
//! uneven. The gradient flows back to `local`.
at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh, Placements placements,
                      std::optional<std::vector<std::int64_t>> sizes = std::nullopt);

//! Returns the local shard. Its gradient is assumed to have `grad_placements`; by default, the placements of
//! the tensor, with partial replaced by replicated.
at::Tensor to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements = std::nullopt);

//! Returns the full tensor on every rank.
at::Tensor full_tensor(const at::Tensor& tensor);

//! Redistributes the tensor with the least traffic. The gradient returns in the original placements; a
//! partial gradient is reduced even if no data moves.
at::Tensor redistribute(const at::Tensor& tensor, Placements placements);

//! Whether the tensor is distributed.
bool is_dtensor(const at::Tensor& tensor);
//! The next three throw UsageError for a plain tensor.
DeviceMesh mesh_of(const at::Tensor& tensor);
const Placements& placements_of(const at::Tensor& tensor);
//! The local shard, detached from autograd. It shares memory with the tensor.
const at::Tensor& local_of(const at::Tensor& tensor);

//! Throws UsageError on every rank if ranks that replicate the tensor hold different values, for example
//! because each rank drew them from its own generator. Compares checksums: one small message per mesh axis.
//! Collective.
void check_replicas(const at::Tensor& tensor);
//! The same for a plain tensor, which counts as replicated in operators with distributed tensors.
void check_replicas(const at::Tensor& plain, const DeviceMesh& mesh);

//! Like distribute_tensor, for parameters: gradients are redistributed to the parameter's placements as they
//! are accumulated, and operators prefer to move other tensors instead of the parameter.
at::Tensor distribute_parameter(const at::Tensor& full, const DeviceMesh& mesh, Placements placements,
                                bool broadcast = true);

//! `DTensor([4, 8], float, DeviceMesh(tp=2), [Shard(0)])`, followed by the elements of this rank.
std::string to_string(const at::Tensor& tensor);

// Factory functions. Random values depend on the mesh's seed and the number of earlier draws, not on the
// placements.
//! Every element is `value`.
at::Tensor distributed_full(c10::IntArrayRef sizes, double value, const DeviceMesh& mesh,
                            Placements placements, at::ScalarType dtype = at::kFloat,
                            at::Device device = at::kCPU);
at::Tensor distributed_zeros(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                             at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);
at::Tensor distributed_ones(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                            at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);
//! Uniform in [0, 1).
at::Tensor distributed_rand(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                            at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);
//! Standard normal.
at::Tensor distributed_randn(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                             at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);

//! During its lifetime, operators without a sharding rule run with all tensors replicated on this thread,
//! and in the backward passes that it starts, instead of throwing. Objects must end in reverse order.
class ReplicateUnknownOps {
 public:
  ReplicateUnknownOps();
  ~ReplicateUnknownOps();
  ReplicateUnknownOps(const ReplicateUnknownOps&) = delete;
  ReplicateUnknownOps& operator=(const ReplicateUnknownOps&) = delete;

 private:
  std::shared_ptr<void> mode_;
};

//! Collectives that redistributions issued on this thread, and on the current device if it is not the CPU:
//! backward passes of a device run on a thread of autograd.
struct Traffic {
  std::int64_t all_reduces = 0, all_gathers = 0, reduce_scatters = 0, all_to_alls = 0;
  std::int64_t bytes = 0;  //!< bytes that this rank sends with ring algorithms
  std::int64_t calls() const { return all_reduces + all_gathers + reduce_scatters + all_to_alls; }
};
//! The traffic since the thread started or since the last `reset_traffic`.
Traffic traffic();
//! Sets the counters of this thread and of its current device to 0.
void reset_traffic();

}  // namespace penstock::tensor
