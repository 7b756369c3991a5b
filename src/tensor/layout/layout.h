// Arithmetic of placements: local shard sizes for given global sizes, and the cost of redistribution.
#pragma once

#include "tensor/layout/mesh_impl.h"

#include <penstock/tensor/placement.h>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <memory>

namespace penstock::tensor {

using Sizes = c10::SmallVector<std::int64_t, 6>;
using MeshPtr = std::shared_ptr<DeviceMesh::Impl>;

struct Interval {
  std::int64_t start = 0;
  std::int64_t size = 0;
};

//! The shard of rank `r` of `n`: ceil(size / n) elements; the last ranks have fewer or none.
Interval chunk(std::int64_t size, std::int64_t n, std::int64_t r);

//! The interval of a dim that this rank holds after sharding over the axes before `axis` (all axes if -1).
Interval interval_of(std::int64_t size, std::int64_t dim, const Placements& placements,
                     const DeviceMesh::Impl& mesh, int axis = -1);

Sizes local_sizes(c10::IntArrayRef sizes, const Placements& placements, const DeviceMesh::Impl& mesh);

//! The number of shards of a dim.
std::int64_t shards_of(std::int64_t dim, const Placements& placements, const DeviceMesh::Impl& mesh);

//! Whether all local shards have the same size.
bool is_even(c10::IntArrayRef sizes, const Placements& placements, const DeviceMesh::Impl& mesh);

//! Strides of a dense tensor of these sizes, with its dims in the order of the local strides.
Sizes dense_strides(c10::IntArrayRef sizes, c10::IntArrayRef local_strides);

//! Bytes that a rank sends to change one axis of `n` ranks from one placement to another. `bytes` is the
//! local size if that axis is replicated. Returns -1 if no single collective does it.
double move_bytes(const AxisPlacement& from, const AxisPlacement& to, double bytes, std::int64_t n);

//! Makes negative dims positive. Throws UsageError if a dim is out of range or the number of placements is
//! wrong.
Placements checked(Placements placements, std::int64_t dims, const DeviceMesh::Impl& mesh);

}  // namespace penstock::tensor
