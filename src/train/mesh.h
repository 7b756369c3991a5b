// Where a rank stands among pipeline, data and tensor parallel ranks, and the groups it shares with its
// neighbours.
#pragma once

#include <penstock/comm/world.h>
#include <penstock/train/options.h>

namespace penstock::train {

struct Mesh {
  int pp = 0, dp = 0, tp = 0;  //!< this rank's coordinates
  Group world;
  Group pipeline;  //!< ranks that differ in `pp` only
  Group replicas;  //!< in `dp` only
  Group tensors;   //!< in `tp` only
};

//! World rank = (pp * D + dp) * T + tp. UsageError where the world has another size.
Mesh make_mesh(const World& world, const ParallelOptions& options);

}  // namespace penstock::train
