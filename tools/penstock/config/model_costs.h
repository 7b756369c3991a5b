// The costs of an exported model, as `penstock costs --json` prints them for `plan --model`.
#pragma once

#include "config/cost_file.h"

#include <penstock/plan/planner.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::tool {

struct ModelCosts {
  CostFile file;                                    //!< its layers
  std::vector<std::int64_t> first_operators{};      //!< of the layers
  std::vector<plan::RecomputableModule> modules{};  //!< in the order in which the planner recomputes them
  std::int64_t microbatch_rows = 0;                 //!< of the costs; 0: unknown
  bool fixed_rows = false;                          //!< whether other microbatches are impossible
};

//! Throws ParseError if the text was not written by `penstock costs --json`.
ModelCosts read_model_costs(const std::string& text);

}  // namespace penstock::tool
