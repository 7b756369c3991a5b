// The pipeline-, data- and tensor-parallel coordinates of a rank, and its groups.
#pragma once

#include <penstock/comm/world.h>
#include <penstock/train/options.h>

namespace penstock::train {

struct Mesh {
  int pp = 0, dp = 0, tp = 0;  //!< this rank's coordinates
  comm::Group world;
  comm::Group pipeline;  //!< ranks that differ in `pp` only
  comm::Group replicas;  //!< ranks that differ in `dp` only
  comm::Group tensors;   //!< ranks that differ in `tp` only
};

//! World rank = (pp * D + dp) * T + tp. Throws UsageError if the world has a different size.
Mesh make_mesh(const comm::World& world, const ParallelOptions& options);

}  // namespace penstock::train
