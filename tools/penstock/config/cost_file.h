// Reads costs from TOML. A file describes stages, or layers that are partitioned once the number of stages is
// known. docs/simulation.md documents the format.
#pragma once

#include <penstock/plan/costs.h>
#include <penstock/view/drawing.h>

#include <optional>
#include <string>
#include <vector>

namespace penstock::tool {

struct CostFile {
  plan::Costs shared;                                //!< links, overlap, skips; no stages
  plan::StageCosts each;                             //!< defaults for every stage and layer
  std::vector<plan::StageCosts> stages;              //!< empty: every stage is `each`
  std::vector<plan::Layer> layers;                   //!< empty: the file describes stages
  std::optional<int> microbatches;                   //!< the microbatch count that the costs apply to
  view::TimeUnit time_unit = view::TimeUnit::Units;  //!< seconds if there is a file
};

//! Reads a cost file. Throws UsageError with line and column.
CostFile read_cost_file(const std::string& path);
//! Parses the text of a cost file. Errors name `path`.
CostFile read_cost_text(const std::string& text, const std::string& path);

//! Costs of a pipeline with this placement: the file's stages, the optimal partition of its layers, or `each`
//! for every stage.
plan::Costs costs_for(const CostFile& file, const std::vector<Rank>& rank_of_stage);

}  // namespace penstock::tool
