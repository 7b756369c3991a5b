// The options of `penstock train` for the weights from which a run starts.
#pragma once

#include "config/settings.h"

#include <penstock/train/options.h>

#include <string>
#include <vector>

namespace penstock::tool {

struct WeightSettings {
  std::string init;                 //!< empty: the initial values of the model
  std::vector<std::string> rename;  //!< `FROM=TO`
  bool partly = false;

  void declare(Settings& settings);
  //! Throws UsageError for invalid rules, and for options without `--init`.
  void resolve(train::RunOptions& run) const;
};

}  // namespace penstock::tool
