// What the fuzzers do with one input: read it as CSV, and hold the library to its promises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock::fuzz {

//! Reads, prints, reads again, validates, lowers. Returns what is wrong, or nothing; a crash or a sanitizer's
//! report is wrong too.
const char* try_csv(std::string_view bytes);

}  // namespace penstock::fuzz
