// Assigns pieces to writing ranks. Every rank computes the same plan from the descriptions of all pieces.
#pragma once

#include "checkpoint/commit/manifest.h"

#include <penstock/checkpoint/piece.h>

#include <string>
#include <vector>

namespace penstock::checkpoint {

//! Serializes the metadata of the pieces of a rank, and problems with them, for the other ranks.
std::string describe_pieces(const std::vector<Piece>& pieces);

struct SavePlan {
  //! All tensors with their pieces. Checksums are filled in after the write.
  std::vector<StoredTensor> tensors;
  //! One file per writing rank; only the names are set.
  std::vector<StoredFile> files;
  std::vector<int> writers;  //!< the rank of each file

  //! A piece that a rank writes.
  struct Job {
    std::size_t piece = 0;         //!< index in the pieces that the rank passed
    std::size_t tensor = 0;        //!< index in `tensors`
    std::size_t stored_piece = 0;  //!< index in the pieces of that tensor
  };
  std::vector<std::vector<Job>> jobs;  //!< by rank
};

//! Assigns a piece that several ranks hold to the one with the fewest bytes so far. Throws a UsageError that
//! lists every problem: tensors whose metadata differs between ranks, and tensors with missing elements.
SavePlan plan_save(const std::vector<std::string>& descriptions);

}  // namespace penstock::checkpoint
