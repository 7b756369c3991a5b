// Range checks of numeric options. The library passes the name of a field, the tool that of a flag.
#pragma once

#include "base/text.h"

#include <penstock/base/error.h>

#include <cmath>
#include <cstdint>
#include <string_view>

namespace penstock {

//! Throws UsageError if the value is smaller than `least`.
inline void check_at_least(std::int64_t value, std::int64_t least, std::string_view option) {
  if (value < least)
    throw UsageError(str_cat(option, " must be at least ", least, ", not ", value), {},
                     str_cat("use ", least, " or more"));
}

//! Throws UsageError if the value is negative, infinite or NaN.
inline void check_not_negative(double value, std::string_view option) {
  if (!(value >= 0) || std::isinf(value))
    throw UsageError(str_cat(option, " must be a non-negative number"), {}, "for example 0.001");
}

//! Throws UsageError unless the value is between `least` and `most`.
inline void check_between(std::int64_t value, std::int64_t least, std::int64_t most,
                          std::string_view option) {
  if (value < least || value > most)
    throw UsageError(str_cat(option, " must be between ", least, " and ", most, ", not ", value), {},
                     value < least ? str_cat("use at least ", least) : str_cat("use at most ", most));
}

//! The default limit of an option that is a count.
inline constexpr std::int64_t kMaxCount = 65'535;

//! Returns the value of an option that is a count. Throws UsageError unless it is between 1 and `most`, which
//! must fit an int.
inline int count_option(std::int64_t value, std::string_view option, std::int64_t most = kMaxCount) {
  check_between(value, 1, most, option);
  return static_cast<int>(value);
}

}  // namespace penstock
