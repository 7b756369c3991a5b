// Penstock's version; does not depend on torch.
#pragma once

#include <string>

namespace penstock {

//! Penstock's version, for example `0.1.0`.
std::string version();

}  // namespace penstock
