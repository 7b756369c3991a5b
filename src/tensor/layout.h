// The arithmetic of placements: which part of a tensor of given global sizes a rank has, and what moving it
// costs.
#pragma once

#include "tensor/mesh_state.h"

#include <penstock/tensor/placement.h>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <memory>

namespace penstock {

using Sizes = c10::SmallVector<std::int64_t, 6>;
using MeshPtr = std::shared_ptr<MeshState>;

struct Interval {
  std::int64_t start = 0;
  std::int64_t size = 0;
};

//! The part of rank `r` of `n`: ceil(size / n) elements, the last ranks have fewer or none.
Interval chunk(std::int64_t size, std::int64_t n, std::int64_t r);

//! What this rank has of a dim after the cuts of the axes before `axis` (all axes if it is -1).
Interval interval_of(std::int64_t size, std::int64_t dim, const Placements& placements, const MeshState& mesh,
                     int axis = -1);

Sizes local_sizes(c10::IntArrayRef sizes, const Placements& placements, const MeshState& mesh);

//! How many parts a dim is cut into.
std::int64_t parts_of(std::int64_t dim, const Placements& placements, const MeshState& mesh);

//! Whether every rank has a part of the same size.
bool is_even(c10::IntArrayRef sizes, const Placements& placements, const MeshState& mesh);

//! Strides of a dense tensor of these sizes with its dims in the order of the local strides.
Sizes dense_strides(c10::IntArrayRef sizes, c10::IntArrayRef local_strides);

//! Bytes that a rank sends to change one axis of `n` ranks from one placement to another, for a tensor that
//! has `bytes` on a rank if that axis is replicated. Not finite (-1) where there is no direct way.
double move_bytes(const AxisPlacement& from, const AxisPlacement& to, double bytes, std::int64_t n);

//! Negative dims made positive; throws UsageError for dims that the tensor does not have, and for a wrong
//! count.
Placements checked(Placements placements, std::int64_t dims, const MeshState& mesh);

}  // namespace penstock
