// Pieces of distributed tensors: which box of the whole a rank has follows from mesh and placements, so that
// tensor parallelism needs no pieces made by hand.
#pragma once

#include <penstock/checkpoint/piece.h>
#include <penstock/tensor/flatten.h>

#include <string>
#include <vector>

namespace penstock {

//! The part of a tensor of this shape that this rank has. UsageError for values that are still to be reduced:
//! they are no rank's elements.
Part placed_part(const std::vector<std::int64_t>& shape, const DeviceMesh& mesh, Placements placements);

//! The part that elements `begin` to `end` of this rank's part are: what `ShardedParameter` says of a
//! distributed parameter (sharded x tensor parallel).
Part placed_part(const DTensorForm& form, std::int64_t begin, std::int64_t end);

//! A tensor that is whole, or distributed: then the piece is this rank's part, and `local` the distributed
//! tensor itself, which saving and loading take apart. (An optimizer's states are found by that tensor.)
Piece tensor_piece(std::string name, const at::Tensor& tensor, PieceKind kind = PieceKind::Parameter);

}  // namespace penstock
