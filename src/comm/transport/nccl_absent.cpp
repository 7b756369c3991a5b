// Stub for a build without NCCL: libtorch does not have it, or its headers were not found.
#include "comm/transport/optional_backends.h"

#include <penstock/base/error.h>

namespace penstock::comm {

std::shared_ptr<Transport> make_nccl_transport(c10::intrusive_ptr<c10d::Store> /*store*/,
                                               std::string /*prefix*/, const std::string& /*address*/,
                                               c10::Device /*device*/,
                                               std::chrono::milliseconds /*join_timeout*/) {
#ifdef PENSTOCK_NCCL_WITHOUT_HEADERS
  throw CommError(
      "penstock was built without NCCL: the headers of CUDA or NCCL were not found", {},
      "set `backend` to gloo, or install the headers and build penstock again (docs/backends.md)");
#else
  throw CommError("this libtorch was built without NCCL", {},
                  "set `backend` to gloo, or use a libtorch built with NCCL");
#endif
}

bool nccl_present() {
  return false;
}

std::optional<std::string> nccl_version() {
  return std::nullopt;
}

}  // namespace penstock::comm
