// Penstock's own version, for the torch-free side and the tool.
#pragma once

#include <string>

namespace penstock {

//! Penstock's own version, for example `0.1.0`.
std::string version();

}  // namespace penstock
