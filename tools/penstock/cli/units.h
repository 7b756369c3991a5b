// Parses quantities from the command line and TOML files: `16GiB`, `25 GB`, `640`.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::tool {

//! Parses a number with an optional unit: B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB. Throws
//! UsageError.
double parse_bytes(const std::string& text);

}  // namespace penstock::tool
