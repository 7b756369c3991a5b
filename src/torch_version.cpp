// The version of libtorch.
#include <penstock/torch_version.h>

#include <torch/version.h>

namespace penstock {

std::string torch_version() {
  return TORCH_VERSION;
}

}  // namespace penstock
