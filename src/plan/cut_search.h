// Where to split a chain of layers so that a given program takes least time. The slowest stage alone does not
// decide that: a pipeline that has to fill and drain gains from light last stages.
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/schedule/program.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock {

//! The stages of a cut, which lists each stage's first layer and then the number of layers.
std::vector<StageCosts> cut_stages(std::span<const Layer> layers, const std::vector<int>& first_layer);

struct CutSearch {
  std::vector<int> first_layer;  //!< of each stage, and the number of layers
  bool exact = false;            //!< no cut is better: the search ended before its budget did
};

//! Searches from `start` for the cut with the least simulated step time among those whose peak memory stays
//! under the cap; if it finds none of those, the one that exceeds it least. Never worse than `start`.
//! `links` gives links, overlap and skips; its stages are not looked at. Deterministic.
CutSearch search_cuts(std::span<const Layer> layers, const Program& program, const Costs& links,
                      std::optional<std::uint64_t> memory_cap, std::vector<int> start);

}  // namespace penstock
