// The version of libtorch, which ranks compare at setup.
#pragma once

#include <string>

namespace penstock {

//! The version of the loaded libtorch.
std::string torch_version();

}  // namespace penstock
