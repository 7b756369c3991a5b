// Who writes what: made from the descriptions of all ranks' pieces, alike on every rank.
#pragma once

#include "checkpoint/manifest.h"

#include <penstock/checkpoint/piece.h>

#include <string>
#include <vector>

namespace penstock {

//! A rank's pieces without their elements, for the others; with what is wrong with them.
std::string describe_pieces(const std::vector<Piece>& pieces);

struct SavePlan {
  //! All tensors with their pieces; checksums are still to be filled in.
  std::vector<StoredTensor> tensors;
  //! One for each rank that writes; names only.
  std::vector<StoredFile> files;
  std::vector<int> writers;  //!< the rank of each file

  //! A piece that a rank writes.
  struct Job {
    std::size_t piece = 0;   //!< among those that the rank handed over
    std::size_t tensor = 0;  //!< in `tensors`
    std::size_t place = 0;   //!< among that tensor's pieces
  };
  std::vector<std::vector<Job>> jobs;  //!< by rank
};

//! Of pieces that several ranks have, the one with least to write so far takes it. UsageError lists
//! everything that does not fit: tensors of which ranks say different things, and tensors that lack elements.
SavePlan plan_save(const std::vector<std::string>& descriptions);

}  // namespace penstock
