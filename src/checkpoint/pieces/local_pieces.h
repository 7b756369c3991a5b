// Prepares pieces for saving and loading: replaces distributed tensors with their local shards, and each
// BoxRange with boxes.
#pragma once

#include <penstock/checkpoint/piece.h>

#include <vector>

namespace penstock::checkpoint {

std::vector<Piece> local_pieces(const std::vector<Piece>& pieces);

}  // namespace penstock::checkpoint
