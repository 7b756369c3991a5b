// Stands in for UCC where the libtorch at hand was built without it.
#include "comm/other_backends.h"

#include <penstock/base/error.h>

namespace penstock {

std::shared_ptr<Transport> make_ucc_transport(c10::intrusive_ptr<c10d::Store> /*store*/,
                                              std::string /*prefix*/,
                                              std::chrono::milliseconds /*join_timeout*/) {
  throw CommError("this libtorch was built without UCC", {},
                  "use --backend gloo, or a libtorch that has UCC");
}
bool ucc_present() {
  return false;
}

}  // namespace penstock
