// Merging in the row order of a batch.
#include "value/row_order.h"

#include <penstock/value/microbatch.h>

#include <ATen/ops/cat.h>

#include <numeric>

namespace penstock::value {
namespace {

using ByShard = std::vector<std::vector<std::int64_t>>;

// Splits each shard of a batch of `total` rows as `tensor_split` does.
ByShard split_shards(const RowOrder& order, std::int64_t total, std::size_t microbatches) {
  const std::int64_t unit = total / std::accumulate(order.begin(), order.end(), std::int64_t{0});
  ByShard result(microbatches);
  for (const std::int64_t shard : order) {
    const std::vector<std::int64_t> sizes = chunk_sizes(shard * unit, static_cast<int>(microbatches));
    for (std::size_t m = 0; m < microbatches; ++m) result[m].push_back(sizes[m]);
  }
  return result;
}

bool sums_to(const ByShard& by_shard, const std::vector<std::int64_t>& rows) {
  for (std::size_t m = 0; m < rows.size(); ++m) {
    if (std::accumulate(by_shard[m].begin(), by_shard[m].end(), std::int64_t{0}) != rows[m]) return false;
  }
  return true;
}

}  // namespace

std::optional<ByShard> rows_by_shard(const BatchRows& batch, const std::vector<std::int64_t>& rows) {
  if (batch.order.size() <= 1 || rows.size() != batch.microbatches.size()) return std::nullopt;
  const auto total = [](const std::vector<std::int64_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  };
  // One row per row of a tensor of the batch.
  ByShard by_shard = split_shards(batch.order, total(rows), rows.size());
  if (sums_to(by_shard, rows)) return by_shard;
  // Several rows per row of the batch, for example one per token.
  const std::int64_t factor = batch.microbatches[0] == 0 ? 0 : rows[0] / batch.microbatches[0];
  by_shard = split_shards(batch.order, total(batch.microbatches), rows.size());
  for (std::vector<std::int64_t>& sizes : by_shard) {
    for (std::int64_t& size : sizes) size *= factor;
  }
  if (sums_to(by_shard, rows)) return by_shard;
  return std::nullopt;
}

at::Tensor cat_rows(const std::vector<at::Tensor>& microbatches, std::int64_t dim, const BatchRows& batch) {
  std::vector<std::int64_t> rows;
  for (const at::Tensor& tensor : microbatches) rows.push_back(tensor.size(dim));
  const std::optional<ByShard> by_shard = rows_by_shard(batch, rows);
  if (!by_shard) return at::cat(microbatches, dim);
  std::vector<std::vector<at::Tensor>> pieces;  // by microbatch, then by shard
  for (std::size_t m = 0; m < microbatches.size(); ++m)
    pieces.push_back(microbatches[m].split_with_sizes((*by_shard)[m], dim));
  std::vector<at::Tensor> ordered;
  for (std::size_t shard = 0; shard < batch.order.size(); ++shard) {
    for (const std::vector<at::Tensor>& of_microbatch : pieces) ordered.push_back(of_microbatch[shard]);
  }
  return at::cat(ordered, dim);
}

}  // namespace penstock::value
