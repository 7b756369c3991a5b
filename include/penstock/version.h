// The versions of Penstock and libtorch, which ranks compare at set-up.
#pragma once

#include <penstock/base/version.h>

#include <string>

namespace penstock {

//! The version of the loaded libtorch.
std::string torch_version();

}  // namespace penstock
