// Stub for a libtorch that was built without UCC.
#include "comm/transport/optional_backends.h"

#include <penstock/base/error.h>

namespace penstock::comm {

std::shared_ptr<Transport> make_ucc_transport(c10::intrusive_ptr<c10d::Store> /*store*/,
                                              std::string /*prefix*/,
                                              std::chrono::milliseconds /*join_timeout*/) {
  throw CommError("this libtorch was built without UCC", {},
                  "set `backend` to gloo, or use a libtorch built with UCC");
}
bool ucc_present() {
  return false;
}

}  // namespace penstock::comm
