// Combines --ranks, --pp, --dp and --tp.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::tool {

//! The number of ranks per kind of parallelism.
struct RankCounts {
  int pp = 1, dp = 1, tp = 1;
  int all() const { return pp * dp * tp; }
};

//! The values of the options.
struct RankRequest {
  std::optional<std::int64_t> ranks, pp, dp, tp;

  //! `ranks` alone sets pp. With none of the four, pp is `usual`. Throws UsageError if they contradict each
  //! other.
  RankCounts counts(int usual = 1) const;
};

}  // namespace penstock::tool
