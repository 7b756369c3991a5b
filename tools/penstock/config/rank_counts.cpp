// Resolves the rank options.
#include "config/rank_counts.h"

#include "base/option_ranges.h"
#include "base/text.h"
#include "config/settings.h"

#include <penstock/base/error.h>

#include <string>

namespace penstock::tool {

RankCounts RankRequest::counts(int usual) const {
  RankCounts counts;
  counts.dp = count_option(dp.value_or(1), "--dp");
  counts.tp = count_option(tp.value_or(1), "--tp");
  const std::int64_t others = static_cast<std::int64_t>(counts.dp) * counts.tp;
  if (ranks) count_option(*ranks, "--ranks");
  if (ranks && !pp && *ranks % others != 0) {
    throw UsageError(str_cat(*ranks, " ranks are not a multiple of --dp ", counts.dp, " x --tp ", counts.tp),
                     {}, str_cat("make --ranks a multiple of ", others));
  }
  const bool none = !ranks && !dp && !tp;
  counts.pp = count_option(pp.value_or(ranks ? *ranks / others : none ? usual : 1), "--pp");
  const std::int64_t all = counts.pp * others;
  count_option(all, "--pp x --dp x --tp");
  if (ranks && *ranks != all) {
    throw UsageError(str_cat("--ranks ", *ranks, " is not --pp x --dp x --tp, which is ", all), {},
                     str_cat("omit --ranks, or make it ", all));
  }
  return counts;
}

}  // namespace penstock::tool
