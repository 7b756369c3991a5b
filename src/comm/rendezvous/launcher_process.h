// Finds the process of a launcher among the ancestors of this process.
#pragma once

#include <cstdint>

namespace penstock::comm {

//! Returns the first of `process`, its parent and so on whose initial environment lacks `variable` or cannot
//! be read.
std::int64_t ancestor_without(const char* variable, std::int64_t process);

}  // namespace penstock::comm
