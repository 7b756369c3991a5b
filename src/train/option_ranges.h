// Range checks of numeric options. The library passes the name of a field, the tool that of a flag.
#pragma once

#include "base/text.h"

#include <penstock/base/error.h>

#include <cmath>
#include <cstdint>

namespace penstock::train {

//! Throws UsageError if the value is smaller than `least`.
inline void at_least(std::int64_t value, std::int64_t least, const char* option) {
  if (value < least)
    throw UsageError(str_cat(option, " must be at least ", least, ", not ", value), {},
                     str_cat("use ", least, " or more"));
}

//! Throws UsageError if the value is negative, infinite or NaN.
inline void not_negative(double value, const char* option) {
  if (!(value >= 0) || std::isinf(value))
    throw UsageError(str_cat(option, " must be a non-negative number"), {}, "for example 0.001");
}

}  // namespace penstock::train
