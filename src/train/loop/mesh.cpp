// Maps ranks to coordinates.
#include "train/loop/mesh.h"

#include <penstock/base/error.h>

namespace penstock::train {

Mesh make_mesh(const comm::World& world, const ParallelOptions& options) {
  const comm::Group& all = world.group();
  if (all.size() != options.ranks())
    throw UsageError("pp " + std::to_string(options.pp) + " x dp " + std::to_string(options.dp) + " x tp " +
                     std::to_string(options.tp) + " requires " + std::to_string(options.ranks()) +
                     " ranks, but the world size is " + std::to_string(all.size()));
  const int rank = all.rank();
  const int tp = rank % options.tp, dp = rank / options.tp % options.dp, pp = rank / options.tp / options.dp;
  const auto split = [&](int color, int key, int size) {
    return size == all.size() ? all : *all.split(color, key);
  };
  return {pp,
          dp,
          tp,
          all,
          split(dp * options.tp + tp, pp, options.pp),
          split(pp * options.tp + tp, dp, options.dp),
          split(pp * options.dp + dp, tp, options.tp)};
}

}  // namespace penstock::train
