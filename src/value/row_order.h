// The order of the rows of a batch in its microbatches. The shards of a distributed batch are split
// separately, so a microbatch contains rows of every shard. Merging restores the order of the batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::value {

//! The sizes of the shards that are split separately, in lowest terms. {1} if the rows are not sharded, empty
//! if nothing is split.
using RowOrder = std::vector<std::int64_t>;

//! The rows of a batch that was split into microbatches.
struct BatchRows {
  RowOrder order;
  std::vector<std::int64_t> microbatches;  //!< the number of rows in each
};

//! For each microbatch of an output with these numbers of rows: how many of its rows belong to each shard of
//! the batch. nullopt if the batch is not sharded, or if the rows of the output do not correspond to rows of
//! the batch.
std::optional<std::vector<std::vector<std::int64_t>>> rows_by_shard(const BatchRows& batch,
                                                                    const std::vector<std::int64_t>& rows);

//! Concatenates the microbatches of an output along `dim`, in the order of the batch.
at::Tensor cat_rows(const std::vector<at::Tensor>& microbatches, std::int64_t dim, const BatchRows& batch);

}  // namespace penstock::value
