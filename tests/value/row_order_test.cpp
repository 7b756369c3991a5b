// Outputs of microbatches are merged in the row order of the batch.
#include "value/row_order.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <numeric>
#include <random>

namespace penstock::value {
namespace {

//! Splits each shard of `batch` separately; microbatch m has piece m of every shard.
std::vector<at::Tensor> split_by_shard(const at::Tensor& batch, const std::vector<std::int64_t>& shards,
                                       int microbatches) {
  std::vector<std::vector<at::Tensor>> pieces;
  for (const at::Tensor& shard : batch.split_with_sizes(shards))
    pieces.push_back(shard.tensor_split(microbatches));
  std::vector<at::Tensor> result;
  for (int m = 0; m < microbatches; ++m) {
    std::vector<at::Tensor> rows;
    for (const std::vector<at::Tensor>& shard : pieces) rows.push_back(shard[static_cast<std::size_t>(m)]);
    result.push_back(at::cat(rows));
  }
  return result;
}

BatchRows rows_of(const std::vector<std::int64_t>& shards, const std::vector<at::Tensor>& microbatches) {
  std::int64_t divisor = 0;
  for (const std::int64_t shard : shards) divisor = std::gcd(divisor, shard);
  BatchRows rows{.order = shards, .microbatches = {}};
  for (std::int64_t& shard : rows.order) shard /= divisor;
  for (const at::Tensor& microbatch : microbatches) rows.microbatches.push_back(microbatch.size(0));
  return rows;
}

TEST(ValueRowOrder, MergesRandomShardsInBatchOrder) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int microbatches = 1 + static_cast<int>(random() % 5);
    std::vector<std::int64_t> shards(1 + random() % 4);
    for (std::int64_t& shard : shards) shard = microbatches + random() % 5;
    const auto total = std::accumulate(shards.begin(), shards.end(), std::int64_t{0});
    const at::Tensor batch = at::arange(total * 2).view({total, 2});
    const std::vector<at::Tensor> split = split_by_shard(batch, shards, microbatches);
    const BatchRows rows = rows_of(shards, split);
    EXPECT_TRUE(at::equal(cat_rows(split, 0, rows), batch));

    // Several output rows per row of the batch, and rows in another dim.
    const auto tokens = static_cast<std::int64_t>(1 + random() % 3);
    std::vector<at::Tensor> repeated, transposed;
    for (const at::Tensor& microbatch : split) {
      repeated.push_back(microbatch.repeat_interleave(tokens, 0));
      transposed.push_back(microbatch.t());
    }
    EXPECT_TRUE(at::equal(cat_rows(repeated, 0, rows), batch.repeat_interleave(tokens, 0)));
    EXPECT_TRUE(at::equal(cat_rows(transposed, 1, rows), batch.t()));
  }
}

TEST(ValueRowOrder, ConcatenatesRowsNotInBatch) {
  const std::vector<at::Tensor> statistics{at::arange(2).view({1, 2}), at::arange(2, 4).view({1, 2})};
  EXPECT_TRUE(at::equal(cat_rows(statistics, 0, {.order = {1, 1}, .microbatches = {4, 4}}),
                        at::arange(4).view({2, 2})));
  EXPECT_FALSE(rows_by_shard({.order = {1}, .microbatches = {4, 4}}, {4, 4}));
}

}  // namespace
}  // namespace penstock::value
