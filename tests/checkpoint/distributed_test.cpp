// Pieces of distributed tensors: the regions are the local shards, and a tensor saved in one placement loads
// in any other.
#include "support/check.h"
#include "support/counted_tensors.h"
#include "support/program.h"
#include "support/random_partitions.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/distributed_pieces.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/thread_ranks.h>

#include <gtest/gtest.h>

#include <cstdio>

namespace penstock::checkpoint {
namespace {

using namespace test;

tensor::Placements random_placements(Random& random, std::size_t axes, std::int64_t dims) {
  tensor::Placements placements;
  for (std::size_t i = 0; i < axes; ++i) {
    if (dims == 0 || pick(random, 0, 2) == 0) {
      placements.push_back(tensor::Replicate());
    } else {
      placements.push_back(tensor::Shard(pick(random, 0, dims - 1)));
    }
  }
  return placements;
}

TEST(CheckpointDistributedTensor, SavesLocalShardAndLoadsInAnyOtherPlacement) {
  const unsigned seed = 11;
  std::printf("seed %u\n", seed);
  const TempDir dir;
  for (const std::vector<std::int64_t>& grid : {std::vector<std::int64_t>{3}, {2, 2}, {2, 3}, {2, 1, 2}}) {
    int ranks = 1;
    for (const std::int64_t size : grid) ranks *= static_cast<int>(size);
    comm::run_thread_ranks(ranks, [&](comm::World& world) {
      Random random(seed);  // all ranks draw the same values
      const tensor::DeviceMesh mesh(world.group(), grid);
      const std::string directory = dir / (std::to_string(ranks) + "-" + std::to_string(grid.size()));
      std::vector<Piece> saved, wanted;
      std::vector<at::Tensor> full_tensors, loaded;
      for (int round = 0; round < 40; ++round) {
        std::vector<std::int64_t> shape;
        for (std::int64_t d = pick(random, 0, 3); d > 0; --d) shape.push_back(pick(random, 1, 7));
        std::int64_t numel = 1;
        for (const std::int64_t size : shape) numel *= size;
        const at::Tensor full = at::arange(numel, at::kFloat).reshape(shape);
        const auto axes = grid.size();
        const auto dims = static_cast<std::int64_t>(shape.size());
        const tensor::Placements from = random_placements(random, axes, dims),
                                 to = random_placements(random, axes, dims);
        const at::Tensor tensor = distribute_tensor(full, mesh, from);
        const std::string name = "t" + std::to_string(round);
        saved.push_back(tensor_piece(name, tensor));
        CHECK_THAT(at::equal(take(full, saved.back().region), tensor::local_of(tensor)));
        loaded.push_back(distributed_zeros(shape, mesh, to));
        wanted.push_back(tensor_piece(name, loaded.back()));
        full_tensors.push_back(full);
      }
      CheckpointWriter writer(directory, world.group());
      writer.save(1, saved);
      writer.wait();
      Checkpoint(directory + "/" + checkpoint_name(1)).load(wanted, world.group());
      for (std::size_t i = 0; i < full_tensors.size(); ++i)
        CHECK_THAT(at::equal(tensor::full_tensor(loaded[i]), full_tensors[i]));
    });
  }
}

TEST(CheckpointDistributedTensor, RejectsPartialPlacement) {
  comm::run_thread_ranks(2, [](comm::World& world) {
    const tensor::DeviceMesh mesh(world.group(), {2});
    bool refused = false;
    try {
      local_region({4, 4}, mesh, {tensor::Partial()});
    } catch (const UsageError& error) {
      refused = std::string(error.what()).find("Partial(sum)") != std::string::npos;
    }
    CHECK_THAT(refused);
  });
}

}  // namespace
}  // namespace penstock::checkpoint
