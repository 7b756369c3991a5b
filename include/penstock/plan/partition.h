// Cuts a chain of layers into stages: the exact minimum of the slowest stage, and among those of the fullest
// rank.
#pragma once

#include <penstock/plan/costs.h>

#include <optional>
#include <span>
#include <vector>

namespace penstock {

struct PartitionOptions {
  std::vector<Rank> rank_of_stage;  //!< where each stage runs; its size is the number of stages
  std::vector<int> in_flight;       //!< microbatches that each stage holds at its peak; empty: one each
  std::optional<std::uint64_t> memory_cap;  //!< for each rank
};

struct Partition {
  std::vector<int> first_layer;  //!< for each stage; one more entry, the number of layers, closes it
  std::vector<StageCosts> stages;
  double slowest = 0;                      //!< time of the slowest stage for one microbatch
  std::vector<std::uint64_t> rank_memory;  //!< resident bytes plus the activations in flight
  std::uint64_t fullest = 0;               //!< the largest of `rank_memory`
  //! False only where three or more stages a rank made the exact search for memory too long; `slowest` is
  //! then exact among the cuts that were looked at.
  bool exact = true;
};

//! The best cut, or nothing if no cut keeps every rank under the cap. Every stage gets at least one layer;
//! fewer layers than stages are a UsageError.
std::optional<Partition> partition_layers(std::span<const Layer> layers, const PartitionOptions& options);

}  // namespace penstock
