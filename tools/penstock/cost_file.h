// Costs read from TOML. The file may describe stages, or layers that are cut into stages when their number is
// known; docs/simulation.md has the format.
#pragma once

#include <penstock/plan/costs.h>

#include <string>
#include <vector>

namespace penstock::tool {

struct CostFile {
  Costs shared;                    //!< links, overlap, skips; no stages
  StageCosts each;                 //!< what a stage or layer costs where it does not say
  std::vector<StageCosts> stages;  //!< empty: every stage is `each`
  std::vector<Layer> layers;       //!< empty: the model comes in stages
  int microbatches = 0;            //!< the count that the costs are for; 0: not said
  bool seconds = false;            //!< whether times are seconds; without a file they are units
};

//! Reads a file; throws UsageError with line and column.
CostFile read_cost_file(const std::string& path);
//! The same of its text; `path` names it in errors.
CostFile read_cost_text(const std::string& text, const std::string& path);

//! Costs for a pipeline over these ranks: the file's stages, or its layers cut exactly, or all alike.
Costs costs_for(const CostFile& file, const std::vector<Rank>& rank_of_stage);

}  // namespace penstock::tool
