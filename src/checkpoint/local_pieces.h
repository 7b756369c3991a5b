// What saving and loading see of pieces: this rank's elements, also of distributed tensors.
#pragma once

#include <penstock/checkpoint/piece.h>

#include <vector>

namespace penstock {

std::vector<Piece> local_pieces(std::vector<Piece> pieces);

}  // namespace penstock
