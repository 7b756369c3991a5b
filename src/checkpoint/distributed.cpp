// Boxes from placements.
#include "checkpoint/boxes.h"
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

Part placed_part(const DTensorForm& form, std::int64_t begin, std::int64_t end) {
  const Part part = placed_part(form.sizes, form.mesh, form.placements);
  const auto* box = std::get_if<Box>(&part);
  if (box == nullptr) return FlatRange{begin, end};
  return BoxRange{*box, begin, end};
}

Piece tensor_piece(std::string name, const at::Tensor& tensor, PieceKind kind) {
  Piece piece = whole_piece(std::move(name), tensor, kind);
  if (is_dtensor(tensor)) piece.part = placed_part(piece.shape, mesh_of(tensor), placements_of(tensor));
  return piece;
}

namespace {

//! The boxes of a range of a box, each with its share of the range's memory.
void add_boxes(const Piece& piece, std::vector<Piece>& all) {
  const at::Tensor row = piece.local.reshape({-1});
  for (const Chunk& chunk : chunks_of(piece.part, piece.shape)) {
    Piece one = piece;
    one.local = row.narrow(0, chunk.offset, numel_of(chunk.box.lengths)).view(chunk.box.lengths);
    one.part = chunk.box;
    all.push_back(std::move(one));
  }
}

//! Otherwise it is left for those who name what is wrong with a piece.
bool well_formed_range(const Piece& piece) {
  return std::holds_alternative<BoxRange>(piece.part) && piece.local.defined() &&
         part_problem(piece.part, piece.shape).empty() && piece.local.is_contiguous() &&
         piece.local.numel() == numel_of(piece.part, piece.shape);
}

}  // namespace

std::vector<Piece> local_pieces(const std::vector<Piece>& pieces) {
  std::vector<Piece> all;
  all.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    if (well_formed_range(piece)) {
      add_boxes(piece, all);
      continue;
    }
    all.push_back(piece);
    if (piece.local.defined() && is_dtensor(piece.local)) all.back().local = local_of(piece.local);
  }
  return all;
}

}  // namespace penstock
