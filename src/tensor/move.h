// Moving elements: one placement of one axis changed by one collective, and paths of such steps over several
// axes.
#pragma once

#include "tensor/impl.h"

namespace penstock {

//! The part that this rank has after a tensor of these global sizes went from one layout to the other.
Part move(Part part, c10::IntArrayRef sizes, const MeshPtr& mesh, const Placements& from,
          const Placements& to);

//! The layouts in between, the last being `to`: the cheapest in bytes of those in which each step changes one
//! axis.
std::vector<Placements> find_path(c10::IntArrayRef sizes, const MeshState& mesh, const Placements& from,
                                  const Placements& to);

//! Reduces over one axis of the mesh, counted as traffic.
void reduce_over(const at::Tensor& tensor, const MeshState& mesh, int axis, ReduceOp op);

}  // namespace penstock
