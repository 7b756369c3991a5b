// A chunk spec laid over a tree: what to do with each leaf. Shared by splitting and merging.
#pragma once

#include <penstock/value/microbatch.h>

#include <string>
#include <variant>
#include <vector>

namespace penstock {

using LeafRule = std::variant<TensorChunkSpec, Replicate, Reducer>;

//! One rule for each leaf of the tree; UsageError, with the place, where the spec does not fit it.
std::vector<LeafRule> leaf_rules(const FlatTree& tree, const std::optional<ChunkSpec>& spec,
                                 const std::string& root);

//! The rows of what would be split first; nothing if all is replicated.
std::optional<std::int64_t> count_rows(const Args& args, const Kwargs& kwargs,
                                       const std::optional<ChunkSpec>& args_spec,
                                       const std::optional<ChunkSpec>& kwargs_spec);

//! Which rows the microbatches of a tree take: the sizes of the shards that are split each for itself, in
//! lowest terms. {1} if the rows are split as they stand, empty if nothing is split.
using RowOrder = std::vector<std::int64_t>;

//! ShapeError where tensors of the tree would be split in different orders.
RowOrder row_order(const c10::IValue& tree, int chunks, const std::string& root,
                   const std::optional<ChunkSpec>& spec = std::nullopt);
RowOrder row_order(const Kwargs& kwargs, int chunks, const std::string& root,
                   const std::optional<ChunkSpec>& spec = std::nullopt);

//! `not sharded`, `in 4 shards`.
std::string order_text(const RowOrder& order);
//! What to do about it.
const char* row_order_hint();

//! The registered splitter of the value's type; null if it has none.
const Splitter* find_splitter(const c10::IValue& value);

}  // namespace penstock
