// Redistribution: single collectives that change the placement on one axis, and sequences of them over
// several axes.
#pragma once

#include "tensor/dispatch/dtensor_impl.h"

namespace penstock::tensor {

//! Returns this rank's local shard after a tensor of these global sizes is redistributed.
LocalShard move(LocalShard part, c10::IntArrayRef sizes, const MeshPtr& mesh, const Placements& from,
                const Placements& to);

//! The sequence of intermediate placements, ending with `to`. Each step changes one axis; the sequence sends
//! the fewest bytes.
std::vector<Placements> find_path(c10::IntArrayRef sizes, const DeviceMesh::Impl& mesh,
                                  const Placements& from, const Placements& to);

//! All-reduces over one axis of the mesh and counts the traffic.
void reduce_over(const at::Tensor& tensor, const DeviceMesh::Impl& mesh, int axis, comm::ReduceOp op);

}  // namespace penstock::tensor
