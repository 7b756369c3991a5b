// The versions that a run was built with and runs on; compared across ranks at set-up.
#pragma once

#include <penstock/base/version.h>

#include <string>

namespace penstock {

//! The version of the libtorch that is loaded.
std::string torch_version();

}  // namespace penstock
