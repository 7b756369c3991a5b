// Boxes from placements.
#include "checkpoint/local_pieces.h"
#include "tensor/layout.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/distributed.h>

namespace penstock {

Part placed_part(const std::vector<std::int64_t>& shape, const DeviceMesh& mesh, Placements placements) {
  placements = checked(std::move(placements), static_cast<std::int64_t>(shape.size()), *mesh.state());
  bool cut = false;
  for (const AxisPlacement& placement : placements) {
    if (placement.is_partial())
      throw UsageError("a value that is still to be reduced, " + text(placements) + ", has no part to store",
                       {}, "redistribute it to Replicate or Shard first");
    cut = cut || placement.is_shard();
  }
  if (!cut) return Whole{};
  Box box;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const Interval mine = interval_of(shape[dim], static_cast<std::int64_t>(dim), placements, *mesh.state());
    box.offsets.push_back(mine.start);
    box.lengths.push_back(mine.size);
  }
  return box;
}

Piece tensor_piece(std::string name, const at::Tensor& tensor, PieceKind kind) {
  Piece piece = whole_piece(std::move(name), tensor, kind);
  if (is_dtensor(tensor)) piece.part = placed_part(piece.shape, mesh_of(tensor), placements_of(tensor));
  return piece;
}

std::vector<Piece> local_pieces(std::vector<Piece> pieces) {
  for (Piece& piece : pieces)
    if (piece.local.defined() && is_dtensor(piece.local)) piece.local = local_of(piece.local);
  return pieces;
}

}  // namespace penstock
