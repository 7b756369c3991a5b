// Shards, sizes and costs of placements.
#include "tensor/layout/layout.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <numeric>

namespace penstock::tensor {

Interval chunk(std::int64_t size, std::int64_t n, std::int64_t r) {
  const std::int64_t each = (size + n - 1) / n;
  const std::int64_t start = std::min(r * each, size);
  return {start, std::min(each, size - start)};
}

Interval interval_of(std::int64_t size, std::int64_t dim, const Placements& placements,
                     const DeviceMesh::Impl& mesh, int axis) {
  Interval result{0, size};
  const std::size_t end = axis < 0 ? placements.size() : static_cast<std::size_t>(axis);
  for (std::size_t i = 0; i < end; ++i) {
    if (!placements[i].is_shard(dim)) continue;
    const Interval part = chunk(result.size, mesh.shape[i], mesh.coordinate[i]);
    result = {result.start + part.start, part.size};
  }
  return result;
}

Sizes local_sizes(c10::IntArrayRef sizes, const Placements& placements, const DeviceMesh::Impl& mesh) {
  Sizes result(sizes.begin(), sizes.end());
  for (std::size_t i = 0; i < placements.size(); ++i) {
    if (!placements[i].is_shard()) continue;
    std::int64_t& size = result[static_cast<std::size_t>(placements[i].dim())];
    size = chunk(size, mesh.shape[i], mesh.coordinate[i]).size;
  }
  return result;
}

std::int64_t shards_of(std::int64_t dim, const Placements& placements, const DeviceMesh::Impl& mesh) {
  std::int64_t shards = 1;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    if (placements[i].is_shard(dim)) shards *= mesh.shape[i];
  }
  return shards;
}

bool is_even(c10::IntArrayRef sizes, const Placements& placements, const DeviceMesh::Impl& mesh) {
  for (const AxisPlacement& placement : placements) {
    if (!placement.is_shard()) continue;
    if (sizes[static_cast<std::size_t>(placement.dim())] % shards_of(placement.dim(), placements, mesh) != 0)
      return false;
  }
  return true;
}

Sizes dense_strides(c10::IntArrayRef sizes, c10::IntArrayRef local_strides) {
  Sizes order(sizes.size(), 0);
  std::iota(order.begin(), order.end(), 0);
  const auto stride = [&](std::int64_t dim) { return local_strides[static_cast<std::size_t>(dim)]; };
  if (local_strides.size() == sizes.size()) {
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return stride(a) > stride(b); });
  }
  Sizes strides(sizes.size(), 0);
  std::int64_t next = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto dim = static_cast<std::size_t>(order[i]);
    strides[dim] = next;
    next *= std::max<std::int64_t>(sizes[dim], 1);
  }
  return strides;
}

double move_bytes(const AxisPlacement& from, const AxisPlacement& to, double bytes, std::int64_t n) {
  if (from == to || n == 1) return 0;
  const double ring = bytes * static_cast<double>(n - 1) / static_cast<double>(n);
  switch (from.kind()) {
    case AxisPlacement::Kind::Replicate:
      return 0;
    case AxisPlacement::Kind::Shard:
      if (to.is_partial()) return -1;
      return to.is_shard() ? ring / static_cast<double>(n) : ring;
    case AxisPlacement::Kind::Partial:
      if (to.is_partial()) return -1;
      return to.is_shard() ? ring : 2 * ring;
  }
  return -1;
}

Placements checked(Placements placements, std::int64_t dims, const DeviceMesh::Impl& mesh) {
  if (placements.size() != mesh.shape.size()) {
    throw UsageError(str_cat("the mesh has ", mesh.shape.size(), " axes, but there are ", placements.size(),
                             " placements: ", to_string(placements)),
                     {}, "pass one placement per axis of the mesh");
  }
  for (AxisPlacement& placement : placements) {
    if (!placement.is_shard()) continue;
    const std::int64_t dim = placement.dim() < 0 ? placement.dim() + dims : placement.dim();
    if (dim < 0 || dim >= dims) {
      throw UsageError(str_cat("a tensor of ", dims, " dims cannot be sharded along dim ", placement.dim()));
    }
    placement = Shard(dim);
  }
  return placements;
}

}  // namespace penstock::tensor
