// What --ranks, --pp, --dp and --tp mean together.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::tool {

//! How many ranks of each kind.
struct RankCounts {
  int pp = 1, dp = 1, tp = 1;
  int all() const { return pp * dp * tp; }
};

//! What was asked for.
struct RankRequest {
  std::optional<std::int64_t> ranks, pp, dp, tp;

  //! `ranks` alone means pp; with none of the four, `usual` is pp. UsageError where they disagree.
  RankCounts counts(int usual = 1) const;
};

//! UsageError, naming the option, unless it is a number of things that a run can have.
int small_count(std::int64_t value, const char* option);

}  // namespace penstock::tool
