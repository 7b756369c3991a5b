// Searches the partition of a chain of layers that minimizes the step time of a given program. The slowest
// stage alone does not determine it: because the pipeline fills and drains, light last stages help.
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/schedule/program.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock::plan {

//! The stages of a partition, given as the first layer of each stage, then the number of layers.
std::vector<StageCosts> make_stages(std::span<const Layer> layers, const std::vector<int>& first_layer);

struct PartitionResult {
  std::vector<int> first_layer;  //!< per stage, then the number of layers
  bool exact = false;            //!< no partition is better: the search was exhaustive
};

//! Searches from `start` for the partition with the smallest simulated step time whose peak memory is within
//! the cap; if none is found, returns the one that exceeds the cap least. Never worse than `start`. `links`
//! provides links, overlap and skips; its stages are ignored. Deterministic.
PartitionResult search_partition(std::span<const Layer> layers, const schedule::Program& program,
                                 const Costs& links, std::optional<std::uint64_t> memory_cap,
                                 std::vector<int> start);

}  // namespace penstock::plan
