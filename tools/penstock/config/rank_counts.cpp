// Resolves the rank options.
#include "config/rank_counts.h"

#include <penstock/base/error.h>

#include <string>

namespace penstock::tool {

int small_count(std::int64_t value, const char* option) {
  if (value < 1 || value > 65'535)
    throw UsageError(std::string(option) + " must be between 1 and 65535, not " + std::to_string(value), {},
                     "give a positive number");
  return static_cast<int>(value);
}

RankCounts RankRequest::counts(int usual) const {
  RankCounts counts;
  counts.dp = small_count(dp.value_or(1), "--dp");
  counts.tp = small_count(tp.value_or(1), "--tp");
  const std::int64_t others = static_cast<std::int64_t>(counts.dp) * counts.tp;
  if (ranks) small_count(*ranks, "--ranks");
  if (ranks && !pp && *ranks % others != 0) {
    throw UsageError(std::to_string(*ranks) + " ranks are not a multiple of --dp " +
                         std::to_string(counts.dp) + " x --tp " + std::to_string(counts.tp),
                     {}, "make --ranks a multiple of " + std::to_string(others));
  }
  const bool none = !ranks && !dp && !tp;
  counts.pp = small_count(pp.value_or(ranks ? *ranks / others : none ? usual : 1), "--pp");
  const std::int64_t all = counts.pp * others;
  small_count(all, "--pp x --dp x --tp");
  if (ranks && *ranks != all) {
    throw UsageError(
        "--ranks " + std::to_string(*ranks) + " is not --pp x --dp x --tp, which is " + std::to_string(all),
        {}, "omit --ranks, or make it " + std::to_string(all));
  }
  return counts;
}

}  // namespace penstock::tool
