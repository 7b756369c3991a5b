// Collects the findings of the validator with their locations in the user's terms.
#pragma once

#include "base/text.h"

#include <penstock/base/diagnostic.h>
#include <penstock/schedule/action.h>
#include <penstock/schedule/validate.h>

#include <cstddef>
#include <string>

namespace penstock::schedule {

class Findings {
 public:
  Findings(Diagnostics& list, LocationStyle style) : list_(list), style_(style) {}

  //! `rank 1, step 4` or `row 2, column 5`.
  std::string location(std::size_t rank, std::size_t step) const {
    if (style_ == LocationStyle::RowAndColumn) {
      return str_cat("row ", rank + 1, ", column ", step + 1);
    }
    return str_cat("rank ", rank, ", step ", step);
  }
  std::string location(std::size_t rank) const {
    return (style_ == LocationStyle::RowAndColumn ? str_cat("row ", rank + 1) : str_cat("rank ", rank));
  }

  void error(std::string where, std::string message) {
    ++count_;
    if (count_ <= kMaxFindings) list_.push_back({Severity::Error, std::move(where), std::move(message)});
  }

  //! Adds the number of findings that were dropped, if any.
  void close() {
    if (count_ > kMaxFindings)
      list_.push_back({Severity::Error, "", str_cat("and ", count_ - kMaxFindings, " more")});
  }

  std::size_t count() const { return count_; }

 private:
  static constexpr std::size_t kMaxFindings =
      1000;  // more are not useful, and a malicious file could exhaust memory
  Diagnostics& list_;
  LocationStyle style_;
  std::size_t count_ = 0;
};

}  // namespace penstock::schedule
