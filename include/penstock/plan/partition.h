// Partitions a chain of layers into stages: minimizes the time of the slowest stage, then the memory of the
// fullest rank. The minimum is exact.
#pragma once

#include <penstock/plan/costs.h>

#include <optional>
#include <span>
#include <vector>

namespace penstock::plan {

//! The stages to fill and the memory limit.
struct PartitionOptions {
  std::vector<Rank> rank_of_stage{};          //!< rank per stage; its size is the number of stages
  std::vector<int> in_flight{};               //!< peak microbatches in flight per stage; empty: 1 each
  std::optional<std::uint64_t> memory_cap{};  //!< bytes per rank
};

//! Consecutive layers assigned to stages.
struct Partition {
  std::vector<int> first_layer;  //!< per stage; the last entry is the number of layers
  std::vector<StageCosts> stages;
  double slowest = 0;                      //!< time of the slowest stage per microbatch
  std::vector<std::uint64_t> rank_memory;  //!< resident bytes plus activations in flight
  std::uint64_t fullest = 0;               //!< the maximum of `rank_memory`
  //! False only if the exact search over memory is too expensive with three or more stages per rank;
  //! `slowest` is then the minimum over the partitions that were tried.
  bool exact = true;
};

//! Returns the best partition, or nullopt if none fits under the memory cap. Every stage gets at least one
//! layer; throws a UsageError if there are fewer layers than stages.
std::optional<Partition> partition_layers(std::span<const Layer> layers, const PartitionOptions& options);

}  // namespace penstock::plan
