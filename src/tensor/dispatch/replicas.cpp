// Compares replicas by checksum.
#include "tensor/dispatch/replicas.h"

#include "base/io/crc32.h"

#include <penstock/base/error.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/graph_task.h>

namespace penstock::tensor {
namespace {

std::int64_t checksum(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
  return crc32(std::span(static_cast<const std::uint8_t*>(values.const_data_ptr()), values.nbytes()));
}

//! Whether checksums differ between ranks along the axes in `replicated`. The result is the same on every
//! rank.
bool differ(const at::Tensor& local, const DeviceMesh::Impl& mesh, const std::vector<bool>& replicated) {
  const std::int64_t sum = checksum(local);
  const at::Tensor range = at::tensor({sum, -sum}, at::kLong);
  for (std::size_t axis = 0; axis < replicated.size(); ++axis) {
    if (replicated[axis] && mesh.shape[axis] > 1) mesh.groups[axis].all_reduce(range, comm::ReduceOp::Max);
  }
  const auto* bounds = range.const_data_ptr<std::int64_t>();
  const at::Tensor different = at::tensor({bounds[0] == -bounds[1] ? 0 : 1}, at::kLong);
  for (std::size_t axis = 0; axis < replicated.size(); ++axis) {
    if (mesh.shape[axis] > 1) mesh.groups[axis].all_reduce(different, comm::ReduceOp::Max);
  }
  return different.item<std::int64_t>() != 0;
}

[[noreturn]] void refuse(const std::string& what, const std::string& op) {
  throw UsageError(what + " has different values on ranks that must hold the same values", {.op = op},
                   "draw random numbers into a distributed tensor (normal_, uniform_, distributed_randn), or "
                   "broadcast the values of one rank with distribute_tensor");
}

}  // namespace

void check_loaded(const OpCall& call, const at::Tensor& plain) {
  if (plain.dim() == 0 || plain.is_meta() || torch::autograd::get_current_graph_task_id() >= 0) return;
  const std::vector<bool> all(call.mesh->shape.size(), true);
  if (differ(plain, *call.mesh, all))
    refuse("the plain tensor that is copied into a distributed tensor", call.op.schema().name());
}

void check_replicas(const at::Tensor& tensor) {
  const DeviceMesh mesh = mesh_of(tensor);
  std::vector<bool> replicated;
  for (const AxisPlacement& placement : placements_of(tensor)) replicated.push_back(placement.is_replicate());
  if (differ(local_of(tensor), *Access::impl(mesh), replicated))
    refuse("a distributed tensor with placements " + to_string(placements_of(tensor)), "check_replicas");
}

void check_replicas(const at::Tensor& plain, const DeviceMesh& mesh) {
  const std::vector<bool> all(mesh.shape().size(), true);
  if (differ(plain, *Access::impl(mesh), all)) refuse("a plain tensor", "check_replicas");
}

}  // namespace penstock::tensor
