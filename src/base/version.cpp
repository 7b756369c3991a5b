// The version, from CMake's project().
#include <penstock/base/version.h>

namespace penstock {

std::string version() {
  return PENSTOCK_VERSION;
}

}  // namespace penstock
