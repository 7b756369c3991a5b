// The versions that a run was built with and runs on; compared across ranks at set-up.
#pragma once

#include <string>

namespace penstock {

//! Penstock's own version, for example `0.1.0`.
std::string version();

//! The version of the libtorch that is loaded.
std::string torch_version();

}  // namespace penstock
