// The redistribution path between two layouts compared with the cheapest path, found by relaxation over all
// steps between all layouts.
#include "tensor/layout/redistribute.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace penstock::test {
namespace {

struct PathCase {
  std::vector<std::int64_t> mesh, sizes;

  //! The number of elements of the first rank, with one axis treated as replicated.
  double elements(const tensor::Placements& at, std::size_t without) const {
    double product = 1;
    for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
      std::int64_t size = sizes[dim];
      for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
        if (axis != without && at[axis].is_shard(static_cast<std::int64_t>(dim)))
          size = (size + mesh[axis] - 1) / mesh[axis];
      }
      product *= static_cast<double>(size);
    }
    return product;
  }

  //! The elements that a rank sends, plus one per collective; infinite if a step is impossible. (Axes that
  //! shard the same dim do so in order: an inner shard hides an outer one.)
  double step(const tensor::Placements& at, std::size_t axis, const tensor::AxisPlacement& to) const {
    constexpr double never = std::numeric_limits<double>::infinity();
    const tensor::AxisPlacement& from = at[axis];
    for (std::size_t inner = axis + 1; inner < mesh.size(); ++inner) {
      for (const tensor::AxisPlacement& placement : {from, to})
        if (placement.is_shard() && at[inner].is_shard(placement.dim())) return never;
    }
    if (from.is_replicate()) return 1e-3;  // a local slice, or zeros
    if (to.is_partial()) return never;
    const double n = static_cast<double>(mesh[axis]), sent = elements(at, axis) * (n - 1) / n;
    if (from.is_shard()) return 1 + (to.is_shard() ? sent / n : sent);
    return 1 + (to.is_shard() ? sent : 2 * sent);
  }

  std::vector<tensor::Placements> layouts(bool partial) const {
    std::vector<tensor::AxisPlacement> kinds{tensor::Replicate()};
    for (std::size_t dim = 0; dim < sizes.size(); ++dim)
      kinds.emplace_back(tensor::Shard(static_cast<int>(dim)));
    if (partial) kinds.emplace_back(tensor::Partial());
    std::vector<tensor::Placements> all{{}};
    for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
      std::vector<tensor::Placements> longer;
      for (const tensor::Placements& before : all)
        for (const tensor::AxisPlacement& kind : kinds) (longer.emplace_back(before)).push_back(kind);
      all = std::move(longer);
    }
    return all;
  }

  //! The costs from one layout to all others.
  std::vector<double> cheapest(const std::vector<tensor::Placements>& all,
                               const tensor::Placements& from) const {
    std::vector<double> cost(all.size(), std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i] == from) cost[i] = 0;
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t i = 0; i < all.size(); ++i) {
        for (std::size_t j = 0; j < all.size(); ++j) {
          std::vector<std::size_t> differ;
          for (std::size_t axis = 0; axis < mesh.size(); ++axis)
            if (!(all[i][axis] == all[j][axis])) differ.push_back(axis);
          if (differ.size() != 1) continue;
          const double through = cost[i] + step(all[i], differ[0], all[j][differ[0]]);
          if (through < cost[j] - 1e-9) {
            cost[j] = through;
            changed = true;
          }
        }
      }
    }
    return cost;
  }
};

TEST(TensorRedistribution, UsesCheapestPath) {
  const std::vector<PathCase> cases{{{2, 2}, {8, 12}},
                                    {{2, 2}, {8, 4, 6}},
                                    {{2, 3}, {7, 5, 12}},
                                    {{4, 2}, {1, 9, 16}},
                                    {{2, 2, 2}, {16, 8}}};
  int through_others = 0;
  for (const PathCase& path_case : cases) {
    tensor::DeviceMesh::Impl mesh;
    mesh.shape = path_case.mesh;
    mesh.coordinate.assign(path_case.mesh.size(), 0);
    const std::vector<tensor::Placements> all = path_case.layouts(true);
    for (const tensor::Placements& from : all) {
      const std::vector<double> cheapest = path_case.cheapest(all, from);
      for (std::size_t i = 0; i < all.size(); ++i) {
        const std::vector<tensor::Placements> path = find_path(path_case.sizes, mesh, from, all[i]);
        double cost = 0;
        tensor::Placements at = from;
        for (const tensor::Placements& next : path) {
          for (std::size_t axis = 0; axis < at.size(); ++axis) {
            if (at[axis] == next[axis]) continue;
            cost += path_case.step(at, axis, next[axis]);
            if (next[axis].is_shard() && !(next[axis] == all[i][axis])) ++through_others;
          }
          at = next;
        }
        ASSERT_EQ(at, all[i]);
        ASSERT_NEAR(cost, cheapest[i], 1e-6) << to_string(from) << " to " << to_string(all[i]);
      }
    }
  }
  EXPECT_GT(through_others, 0);  // some of the cheapest paths use a sharding that is in neither layout
}

}  // namespace
}  // namespace penstock::test
