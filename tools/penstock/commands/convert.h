// `penstock checkpoint convert`.
#pragma once

#include "commands/changed_weights.h"

#include <string>
#include <vector>

namespace penstock::tool {

//! The arguments of `convert`.
struct Conversion {
  std::string from, to;
  std::string model;                 //!< an archive; empty unless `to` is one or adapters are merged
  std::string max_shard_size;        //!< such as `5GB`; empty: one file
  std::vector<std::string> renames;  //!< `FROM=TO`
  WeightDtype dtype = WeightDtype::Stored;
  bool everything = false, merged = false, force = false;

  bool changes_weights() const { return !renames.empty() || dtype != WeightDtype::Stored; }
};

//! Converts and prints the path that it made.
int convert_checkpoint(const Conversion& request, bool as_json);

}  // namespace penstock::tool
