// Applies a chunk spec to a tree: one rule per leaf. Used for splitting and merging.
#pragma once

#include "value/row_order.h"

#include <penstock/value/microbatch.h>

#include <string>
#include <variant>
#include <vector>

namespace penstock::value {

using LeafRule = std::variant<TensorChunkSpec, Replicate, Reducer>;

//! Returns one rule per leaf of the tree. UsageError, with the path, if the spec does not match the tree.
std::vector<LeafRule> leaf_rules(const FlatTree& tree, const std::optional<ChunkSpec>& spec,
                                 const std::string& root);

//! The number of rows of the first leaf to be split; nullopt if all leaves are replicated.
std::optional<std::int64_t> count_rows(const Args& args, const Kwargs& kwargs,
                                       const std::optional<ChunkSpec>& args_spec,
                                       const std::optional<ChunkSpec>& kwargs_spec);

//! The row order of the microbatches of a tree. Throws ShapeError if tensors of the tree would be split in
//! different orders.
RowOrder row_order(const c10::IValue& tree, int chunks, const std::string& root,
                   const std::optional<ChunkSpec>& spec = std::nullopt);
RowOrder row_order(const Kwargs& kwargs, int chunks, const std::string& root,
                   const std::optional<ChunkSpec>& spec = std::nullopt);

//! For messages: `not sharded`, `in 4 shards`.
std::string order_text(const RowOrder& order);
//! The hint for errors about row orders.
const char* row_order_hint();

//! Like the public `merge_chunks`, for the outputs of the microbatches of a batch: restores the row order of
//! the batch.
c10::IValue merge_chunks(const std::vector<c10::IValue>& chunks, const std::optional<ChunkSpec>& spec,
                         const BatchRows& batch);

//! The registered splitter of the value's type; null if it has none.
const Splitter* find_splitter(const c10::IValue& value);

}  // namespace penstock::value
