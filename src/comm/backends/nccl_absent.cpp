// Stands in for NCCL where the libtorch at hand was built without it.
#include "comm/other_backends.h"

#include <penstock/base/error.h>

namespace penstock {

std::shared_ptr<Transport> make_nccl_transport(c10::intrusive_ptr<c10d::Store> /*store*/,
                                               std::string /*prefix*/,
                                               std::chrono::milliseconds /*join_timeout*/) {
  throw CommError("this libtorch was built without NCCL", {},
                  "use --backend gloo, or a libtorch that has NCCL");
}
bool nccl_present() {
  return false;
}

}  // namespace penstock
