// The options of `penstock train` for low-rank adapters.
#pragma once

#include "config/settings.h"

#include <penstock/train/lora.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tool {

struct LoraSettings {
  std::vector<std::string> patterns;  //!< empty: no adapters
  std::optional<std::int64_t> rank;
  std::optional<double> alpha, dropout;

  void declare(Settings& settings);
  //! Resolves defaults. Throws UsageError for invalid values, and for options without `--lora`.
  void resolve();
  //! The options of a run with this seed; nullopt without adapters.
  std::optional<train::LoraOptions> options(std::uint64_t seed) const;
};

}  // namespace penstock::tool
