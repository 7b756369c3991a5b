// Splits distributed tensors into microbatches and merges them, shard by shard.
#include "tensor/layout/microbatch_values.h"

#include "base/text.h"
#include "tensor/dispatch/dtensor_impl.h"
#include "value/distributed_values.h"

#include <penstock/base/error.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor_split.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace penstock::tensor {
namespace {

//! The sizes of all shards of a dim, in the order of its elements.
std::vector<std::int64_t> shard_sizes(std::int64_t size, std::int64_t dim, const Placements& placements,
                                      const DeviceMesh::Impl& mesh) {
  std::vector<std::int64_t> shards{size};
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_shard(dim)) continue;
    std::vector<std::int64_t> finer;
    for (const std::int64_t shard : shards) {
      for (std::int64_t r = 0; r < mesh.shape[axis]; ++r)
        finer.push_back(chunk(shard, mesh.shape[axis], r).size);
    }
    shards = std::move(finer);
  }
  return shards;
}

std::vector<std::int64_t> shards(const at::Tensor& tensor, std::int64_t dim) {
  const DTensorImpl& impl = *impl_of(tensor);
  return shard_sizes(tensor.size(dim), dim, impl.placements(), impl.mesh());
}

std::vector<std::int64_t> chunk_rows(const at::Tensor& tensor, int chunks, std::int64_t dim,
                                     const ErrorContext& context) {
  const DTensorImpl& impl = *impl_of(tensor);
  const std::vector<std::int64_t> all = shards(tensor, dim);
  std::vector<std::int64_t> rows;
  for (int i = 0; i < chunks; ++i) {
    std::vector<std::int64_t> sizes;
    for (const std::int64_t shard : all)
      sizes.push_back(value::chunk_sizes(shard, chunks)[static_cast<std::size_t>(i)]);
    rows.push_back(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
    // A microbatch must have the same shards as a tensor with its rows.
    if (rows.back() > 0 && sizes == shard_sizes(rows.back(), dim, impl.placements(), impl.mesh())) continue;
    throw ShapeError(str_cat("the shards of a tensor with ", tensor.size(dim), " rows and ",
                             to_string(impl.placements()), " cannot be split into ", chunks, " microbatches"),
                     context, "make the rows a multiple of ranks x microbatches, or redistribute the tensor");
  }
  return rows;
}

std::vector<at::Tensor> split(const at::Tensor& tensor, int chunks, std::int64_t dim) {
  const DeviceMesh mesh = mesh_of(tensor);
  const Placements placements = placements_of(tensor);
  const std::vector<std::int64_t> rows = chunk_rows(tensor, chunks, dim, {});
  std::vector<at::Tensor> parts = at::tensor_split(to_local(tensor), chunks, dim);
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    sizes[static_cast<std::size_t>(dim)] = rows[i];
    parts[i] = from_local(parts[i], mesh, placements, sizes);
  }
  return parts;
}

std::string layout_text(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? to_string(mesh_of(tensor)) + " " + to_string(placements_of(tensor)) : "plain";
}

void check_same_layout(const std::vector<at::Tensor>& tensors, const ErrorContext& context) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (is_dtensor(tensors[i]) && is_dtensor(tensors[0]) && mesh_of(tensors[i]) == mesh_of(tensors[0]) &&
        placements_of(tensors[i]) == placements_of(tensors[0]))
      continue;
    throw UsageError(
        str_cat("chunk 0 is ", layout_text(tensors[0]), " and chunk ", i, " is ", layout_text(tensors[i])),
        context, "redistribute the outputs of all microbatches to the same placements");
  }
}

//! Whether concatenating the local shards gives the shards of the merged tensor, with its rows in the right
//! order.
bool merges_locally(const std::vector<at::Tensor>& tensors, std::int64_t dim, std::int64_t total,
                    const value::BatchRows* batch) {
  const auto nonempty = [](std::vector<std::int64_t> sizes) {
    std::erase(sizes, 0);
    return sizes;
  };
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> merged(shards(tensors[0], dim).size(), 0);
  for (const at::Tensor& tensor : tensors) {
    const std::vector<std::int64_t> sizes = shards(tensor, dim);
    std::transform(sizes.begin(), sizes.end(), merged.begin(), merged.begin(), std::plus<>());
    rows.push_back(tensor.size(dim));
  }
  const DTensorImpl& impl = *impl_of(tensors[0]);
  if (merged != shard_sizes(total, dim, impl.placements(), impl.mesh())) return false;
  if (merged.size() == 1 || tensors.size() == 1 || batch == nullptr) return true;
  const auto by_shard = value::rows_by_shard(*batch, rows);
  if (!by_shard) return nonempty(merged).size() <= 1;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (nonempty(shards(tensors[i], dim)) != nonempty((*by_shard)[i])) return false;
  }
  return true;
}

at::Tensor merge(const std::vector<at::Tensor>& tensors, std::int64_t dim, const value::BatchRows* batch,
                 const ErrorContext& context) {
  check_same_layout(tensors, context);
  const DeviceMesh mesh = mesh_of(tensors[0]);
  const Placements placements = placements_of(tensors[0]);
  if (dim < 0) dim += tensors[0].dim();
  std::vector<std::int64_t> sizes = tensors[0].sizes().vec();
  std::int64_t& rows = sizes[static_cast<std::size_t>(dim)];
  rows = 0;
  for (const at::Tensor& tensor : tensors) rows += tensor.size(dim);
  const bool sharded = std::any_of(placements.begin(), placements.end(),
                                   [&](const AxisPlacement& placement) { return placement.is_shard(dim); });
  std::vector<at::Tensor> locals;
  if (sharded && merges_locally(tensors, dim, rows, batch)) {
    for (const at::Tensor& tensor : tensors) locals.push_back(to_local(tensor));
    return from_local(at::cat(locals, dim), mesh, placements, sizes);
  }
  // The shards of the merged tensor contain rows of other ranks: gather the rows, then shard them again.
  Placements gathered = placements;
  for (AxisPlacement& placement : gathered) {
    if (placement.is_shard(dim)) placement = tensor::Replicate();
  }
  for (const at::Tensor& tensor : tensors)
    locals.push_back(to_local(sharded ? redistribute(tensor, gathered) : tensor));
  const at::Tensor local = batch != nullptr ? cat_rows(locals, dim, *batch) : at::cat(locals, dim);
  const at::Tensor merged = from_local(local, mesh, gathered, sizes);
  return sharded ? redistribute(merged, placements) : merged;
}

value::DistributedMeta meta(const at::Tensor& tensor) {
  const DeviceMesh mesh = mesh_of(tensor);
  value::DistributedMeta result{mesh.names(), mesh.shape(), {}, local_of(tensor).sizes().vec()};
  for (const AxisPlacement& placement : placements_of(tensor))
    result.placements.push_back(to_string(placement));
  return result;
}

}  // namespace

void register_tensor_values() {
  value::register_distributed_values({.is = is_dtensor,
                                      .meta = meta,
                                      .chunk_rows = chunk_rows,
                                      .shards = shards,
                                      .split = split,
                                      .merge = merge});
}

}  // namespace penstock::tensor
