// Pieces of distributed tensors. Mesh and placements determine which box of the full tensor a rank holds, so
// callers need not build pieces for tensor parallelism themselves.
#pragma once

#include <penstock/checkpoint/piece.h>
#include <penstock/tensor/flatten.h>

#include <string>
#include <vector>

namespace penstock::checkpoint {

//! Returns the region of a tensor of this shape that this rank holds. Throws UsageError for partial
//! placements: unreduced values cannot be stored.
Region local_region(const std::vector<std::int64_t>& shape, const tensor::DeviceMesh& mesh,
                    tensor::Placements placements);

//! Returns the region of elements `begin` to `end` of this rank's local shard, as `ShardedParameter`
//! describes a distributed parameter (sharded x tensor parallel).
Region local_region(const tensor::DTensorSpec& spec, std::int64_t begin, std::int64_t end);

//! Makes a piece of a plain or distributed tensor. For a distributed tensor, the region is that of the local
//! shard, but `local` is the distributed tensor itself: optimizer states are looked up by that tensor. Saving
//! and loading extract the local shard.
Piece tensor_piece(std::string name, const at::Tensor& tensor, PieceKind kind = PieceKind::Parameter);

}  // namespace penstock::checkpoint
