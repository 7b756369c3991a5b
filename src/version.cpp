// Versions of ours and of libtorch.
#include <penstock/version.h>

#include <torch/version.h>

namespace penstock {

std::string version() { return PENSTOCK_VERSION; }
std::string torch_version() { return TORCH_VERSION; }

}  // namespace penstock
