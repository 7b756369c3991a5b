// Groups over UCC, compiled if libtorch was built with it. Untested: no test machine has UCC
// (docs/backends.md).
#include "comm/transport/optional_backends.h"
#include "comm/transport/store_transport.h"

#include <torch/csrc/distributed/c10d/ProcessGroupUCC.hpp>

namespace penstock::comm {

std::shared_ptr<Transport> make_ucc_transport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                              std::chrono::milliseconds join_timeout) {
  // Sends are non-blocking and matched by tag.
  return std::make_shared<StoreTransport<c10d::ProcessGroupUCC>>(std::move(store), std::move(prefix),
                                                                 join_timeout, schedule::SendMode::Buffered);
}
bool ucc_present() {
  return true;
}

}  // namespace penstock::comm
