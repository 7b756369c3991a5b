// Computes the regions of distributed tensors from their placements.
#include "checkpoint/pieces/local_pieces.h"
#include "checkpoint/pieces/regions.h"
#include "tensor/layout/layout.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/distributed_pieces.h>

namespace penstock::checkpoint {

Region local_region(const std::vector<std::int64_t>& shape, const tensor::DeviceMesh& mesh,
                    tensor::Placements placements) {
  placements =
      checked(std::move(placements), static_cast<std::int64_t>(shape.size()), *tensor::Access::impl(mesh));
  bool sharded = false;
  for (const tensor::AxisPlacement& placement : placements) {
    if (placement.is_partial())
      throw UsageError("a tensor with unreduced values, " + to_string(placements) + ", cannot be stored", {},
                       "redistribute it to Replicate or Shard first");
    sharded = sharded || placement.is_shard();
  }
  if (!sharded) return FullTensor{};
  Box box;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const tensor::Interval interval =
        interval_of(shape[dim], static_cast<std::int64_t>(dim), placements, *tensor::Access::impl(mesh));
    box.offsets.push_back(interval.start);
    box.lengths.push_back(interval.size);
  }
  return box;
}

Region local_region(const tensor::DTensorSpec& spec, std::int64_t begin, std::int64_t end) {
  const Region part = local_region(spec.sizes, spec.mesh, spec.placements);
  const auto* box = std::get_if<Box>(&part);
  if (box == nullptr) return FlatRange{begin, end};
  return BoxRange{*box, begin, end};
}

Piece tensor_piece(std::string name, const at::Tensor& tensor, PieceKind kind) {
  Piece piece = full_piece(std::move(name), tensor, kind);
  if (tensor::is_dtensor(tensor))
    piece.region = local_region(piece.shape, tensor::mesh_of(tensor), tensor::placements_of(tensor));
  return piece;
}

namespace {

//! Splits a range of a box into boxes, each with its slice of the memory of the range.
void add_boxes(const Piece& piece, std::vector<Piece>& all) {
  const at::Tensor row = piece.local.reshape({-1});
  for (const Chunk& chunk : chunks_of(piece.region, piece.shape)) {
    Piece one = piece;
    one.local = row.narrow(0, chunk.offset, numel_of(chunk.box.lengths)).view(chunk.box.lengths);
    one.region = chunk.box;
    all.push_back(std::move(one));
  }
}

//! Invalid pieces are not split: save and load report their problems.
bool well_formed_range(const Piece& piece) {
  return std::holds_alternative<BoxRange>(piece.region) && piece.local.defined() &&
         region_problem(piece.region, piece.shape).empty() && piece.local.is_contiguous() &&
         piece.local.numel() == numel_of(piece.region, piece.shape);
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
    if (piece.local.defined() && tensor::is_dtensor(piece.local))
      all.back().local = tensor::local_of(piece.local);
  }
  return all;
}

}  // namespace penstock::checkpoint
