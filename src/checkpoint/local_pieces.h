// What saving and loading see of pieces: this rank's elements, also of distributed tensors; boxes and ranges of
// whole tensors only.
#pragma once

#include <penstock/checkpoint/piece.h>

#include <vector>

namespace penstock {

std::vector<Piece> local_pieces(const std::vector<Piece>& pieces);

}  // namespace penstock
