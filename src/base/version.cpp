// The version of the library.
#include <penstock/version.h>

namespace penstock {

std::string version() {
  return PENSTOCK_VERSION_STRING;
}

}  // namespace penstock
